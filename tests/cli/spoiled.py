"""Files of ``combee run`` that would spoil the claim of what they run."""

from __future__ import annotations

import json

import pytest
import yaml

RUN = yaml.safe_load("""
data:
  benchmark:
    name: formula-mini
    params: {task: compute, formulas: 6, train: 12, validation: 12, heldout: 12}
lms: {task: {model: simulated, time_scale: 0}}
budget: {rollouts: 40}
tracker: []
log_dir: log
""")
STATIC = {"name": "static", "params": {"size": 8, "reason": "reflection_minibatch_size was given"}}
PATIENCE = {"stopping": [{"name": "patience", "params": {"updates": 3}}]}
ROWS = {"train": "rows.jsonl", "inputs": ["question"]}
JUDGED = {
    "data": {**ROWS, "validation": "others.jsonl"},
    "program": "their_qa:program",
    "metric": "their_qa:judge",
    "lms": {
        "task": {"model": "openai/small"},
        "proposer": {"model": "openai/strong", "temperature": 1.0},
    },
}
TRAIN_ALONE = {**JUDGED, "data": ROWS, "metric": "their_qa:metric", "strategies": PATIENCE}


@pytest.fixture
def files(tmp_path):
    for name in ("rows", "others"):
        rows = [json.dumps({"question": f"{name} {n}", "answer": "a"}) for n in range(6)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(rows), encoding="utf-8")
    (tmp_path / "their_qa.py").write_text(
        "import dspy\nfrom combee_dspy.evaluation import Judge\nprogram = dspy.Predict('question ->"
        " answer')\ndef metric(*given): return 1.0\njudge = Judge('Is it right?',"
        " lm=dspy.LM('openai/strong', temperature=0.3))\nplain = Judge('Is it right?')\n",
        encoding="utf-8",
    )

    def write(name, **change):
        (tmp_path / name).write_text(yaml.safe_dump({**RUN, **change}), encoding="utf-8")
        return name

    return write


def refused(shell, words, *arguments):
    code, _, err = shell(*arguments)
    assert code == 2, err
    assert words in err
    assert len(err.splitlines()) == 1
    assert ". " in err, "no way out is named"
