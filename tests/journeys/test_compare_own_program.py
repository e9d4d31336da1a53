"""``combee compare`` on a program, a metric, data and models of a user's own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from combee_dspy.cli import main
from tests.journeys.minds import JOURNEYS
from tests.journeys.server import Server

OWN = """
program: own_sorting:program
metric: own_sorting:metric
data:
  {{train: train.jsonl, validation: validation.jsonl, heldout: heldout.jsonl, inputs: [message]}}
lms:
  task: {{model: openai/student, api_base: "{base}", api_key_env: NO_KEY, temperature: 0.0}}
  proposer: {{model: openai/teacher, api_base: "{base}", api_key_env: NO_KEY, temperature: 0.0}}
costs:
  prices:
    openai/student: {{prompt: 1, completion: 1}}
    openai/teacher: {{prompt: 1, completion: 1}}
budget: {{rollouts: 120}}
log_dir: runs/own
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NO_KEY", "none")
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_sorting.py").write_text(
        "from tests.journeys.minds import JOURNEYS\n"
        "program = JOURNEYS['classification'].program\n"
        "def metric(gold, pred, trace=None, pred_name=None, pred_trace=None):\n"
        "    return JOURNEYS['classification'].metric(gold, pred)\n"
    )
    splits = JOURNEYS["classification"].splits()
    for name, split in (("train", "trainset"), ("validation", "valset"), ("heldout", "heldout")):
        lines = [json.dumps(dict(example.items())) for example in splits[split]]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    return tmp_path


def compare(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["compare", *arguments])
    return int(ended.value.code or 0)


@pytest.mark.slow
def test_methods_are_compared_on_a_users_own_file(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Server(JOURNEYS["classification"].mind) as server:
        (folder / "own.yaml").write_text(OWN.format(base=server.lm("student").kwargs["api_base"]))
        figures = folder / "figures.json"
        given = (
            "--methods",
            "gepa,combee",
            "--threads",
            "4",
            "--json",
            str(figures),
        )
        assert compare("--config", str(folder / "own.yaml"), *given) == 0
        bought = server.prompt["student"] + server.completion["student"]
        bought += server.prompt["teacher"] + server.completion["teacher"]
    out = capsys.readouterr().out
    (place,) = (folder / "runs" / "own-compare").iterdir()
    assert [kept.name for kept in place.iterdir()] == ["combee-0"]
    assert out.index("tokens to reach it") < out.index("tokens per point above serial")
    header = out[out.index("tokens to reach it") :]
    assert header.index("per point above serial") < header.index("rollouts")
    assert header.index("rollouts") < header.index("seconds")
    assert "own.yaml: 21 held-out examples, 120 rollouts each, seed 0" in out
    assert "simulated" not in out
    told = json.loads(figures.read_text())
    assert told["simulated"] is False
    sides = {one["method"]: one for one in told["summary"]}
    assert sides["combee"]["heldout"]["mean"] > 0.9
    # What a method is billed for is what it asked; the readings of held-out, three times 21 rows,
    # are nobody's.
    assert 0 < sum(one["tokens"] for one in sides.values()) < bought
    # By the file's prices, a dollar a million tokens.
    assert all(one["dollars"] == pytest.approx(one["tokens"] / 1e6) for one in sides.values())


@pytest.mark.slow
@pytest.mark.parametrize("budget", ["{dollars: 0.03}", "{tokens: 30000}"])
def test_a_budget_in_dollars_or_tokens_ends_every_method(
    folder: Path, capsys: pytest.CaptureFixture[str], budget: str
) -> None:
    with Server(JOURNEYS["classification"].mind) as server:
        text = OWN.format(base=server.lm("student").kwargs["api_base"])
        (folder / "own.yaml").write_text(text.replace("{rollouts: 120}", budget))
        figures = folder / "figures.json"
        methods = ("--methods", "gepa,ace,combee", "--threads", "4", "--json", str(figures))
        assert compare("--config", str(folder / "own.yaml"), *methods) == 0
    limit = "0.03 dollars" if "dollars" in budget else "30,000 tokens"
    assert f"own.yaml: 21 held-out examples, {limit} each" in capsys.readouterr().out
    told = json.loads(figures.read_text())
    tokens = {one["method"]: one["tokens"] for one in told["summary"]}
    assert tokens["combee"] <= 30_000
    # The others look between iterations, and may pass it by one.
    assert all(15_000 < tokens[name] < 60_000 for name in ("gepa", "ace"))


def _without(change: str) -> str:
    return "train.jsonl" if change == "heldout.jsonl" else ""


@pytest.mark.parametrize(
    ("change", "by", "given", "said"),
    [
        ("heldout.jsonl", "train.jsonl", (), "data.train"),
        ("", "", ("--benchmark", "formula"), "benchmark stands in the file already"),
        (", heldout: heldout.jsonl", "", (), "data.heldout is missing"),
        ("", "", ("--budget", "20"), "does not pay for two validations"),
        ("budget: {rollouts: 120}", "budget: {epochs: 1}", (), "names none of rollouts, tok"),
        (
            "budget: {rollouts: 120}",
            "budget: {tokens: 9000}",
            (),
            "and the budget is 9,000 tokens (got 'mipro')",
        ),
        ("openai/teacher: {prompt", "openai/other: {prompt", (), "price of openai/teacher"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_anything_is_bought(
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    change: str,
    by: str,
    given: tuple[str, ...],
    said: str,
) -> None:
    (folder / "own.yaml").write_text(
        OWN.format(base="http://127.0.0.1:9/v1").replace(
            change, by if change.startswith(("budget", "openai")) else _without(change), 1
        )
    )
    if change.startswith("openai"):
        file = folder / "own.yaml"
        file.write_text(file.read_text().replace("{rollouts: 120}", "{dollars: 1}"))
    methods = "mipro" if "mipro" in said else "combee"
    assert compare("--config", str(folder / "own.yaml"), "--methods", methods, *given) == 2
    assert said in " ".join(capsys.readouterr().err.split())
