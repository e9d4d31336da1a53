"""``combee run`` with ``traces:``: what was recorded is read first, and nothing is run for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from combee_dspy.cli._config import RunConfig
from combee_dspy.cli._data import read_data
from combee_dspy.traces import HuggingFace
from tests.worlds import ANIMALS, World, code_word

CONFIG = """
program: qa_of_traces:program
metric: tests.worlds:metric
traces: {name: json-lines, params: {path: logs.jsonl}, selection: {tokens: 50000}%s}
lms: {task: openai/task, proposer: openai/proposer}
budget: {rollouts: 60}
tracker: []
log_dir: log
%s
"""
PROGRAM = 'import dspy\n\n\ndef program():\n    return dspy.Predict("question -> answer")\n'


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    world = World.made()
    lms = {"openai/task": world.task_lm, "openai/proposer": world.proposer_lm}
    monkeypatch.setattr("combee_dspy.cli._plan.make_lm", lambda config, *_: lms[config.model])
    return world


def written(more: str = "", data: str = "") -> str:
    lines: list[dict[str, Any]] = [
        {
            "id": f"t{number}",
            "inputs": {"question": f"Number {number}: word for {animal}?"},
            "outputs": {"answer": "unknown"},
            "expected": {"answer": code_word(animal)},
            "time": 1_700_000_000 + number * 86_400,
        }
        for number, animal in enumerate(ANIMALS)
    ]
    Path("logs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    Path("qa_of_traces.py").write_text(PROGRAM)
    Path("run.yaml").write_text(CONFIG % (more, data))
    return "run.yaml"


def test_traces_alone_make_a_proposal(shell: Any, world: World) -> None:
    code, out, err = shell("run", written())
    assert code == 0, err
    assert out.startswith("not validated ")
    assert "12 recorded rollouts, none bought" in " ".join(out.split())
    assert not world.task_lm.requests
    out = shell("show", "log")[1]
    assert "recorded" in out
    assert "12 of 12 traces are read" in " ".join(out.split())


def test_the_newest_days_are_held_out(shell: Any, world: World) -> None:
    code, out, err = shell("run", written(", heldout_days: 4"))
    assert code == 0, err
    text = " ".join(out.split())
    assert "8 recorded rollouts" in text
    assert "n = 4: " in text


def test_a_dry_run_says_what_would_be_read(shell: Any, world: World) -> None:
    code, out, err = shell("run", written(), "--dry-run")
    assert (code, err) == (0, "")
    assert "12 of 12 traces are read" in " ".join(out.split())
    assert world.asked == 0


@pytest.mark.parametrize(
    ("more", "data", "problem"),
    [
        (", heldout_days: 4", "data: {heldout: rows.jsonl, inputs: [question]}", "held out"),
        ("", "heldout: {target: 0.1}", "no rows are held out"),
        (", heldout_days: -1", "", "traces.heldout_days"),
        (", nonsense: 1", "", "traces.nonsense"),
    ],
)
def test_what_cannot_be_used_is_named(
    shell: Any, world: World, more: str, data: str, problem: str
) -> None:
    Path("rows.jsonl").write_text('{"question": "q", "answer": "a"}\n')
    code, _, err = shell("run", written(more, data))
    assert code
    assert problem in err


def test_files_of_a_builder_lie_beside_the_run_file(tmp_path: Path) -> None:
    (tmp_path / "json").mkdir()
    params = {"path": "json", "files": ["t.jsonl", "https://example.org/t.jsonl"]}
    config = RunConfig.model_validate({"traces": {"name": "hugging-face", "params": params}})
    source = read_data(config, tmp_path).traces
    assert isinstance(source, HuggingFace)
    assert source.path == "json"
    assert source.files == (str(tmp_path / "t.jsonl"), "https://example.org/t.jsonl")


def test_rows_to_learn_from_are_needed_without_traces(shell: Any, world: World) -> None:
    written(data="data: {validation: rows.jsonl, inputs: [question]}")
    Path("rows.jsonl").write_text('{"question": "q", "answer": "a"}\n')
    lines = Path("run.yaml").read_text().splitlines()
    Path("run.yaml").write_text("\n".join(line for line in lines if "traces:" not in line))
    code, _, err = shell("run", "run.yaml")
    assert code
    assert "data.train is missing" in " ".join(err.split())
