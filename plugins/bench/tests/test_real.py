"""A study of methods on a model: its order, its budget, and how it goes on."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import dspy
import pytest

from combee_bench import real
from combee_bench.options import RealOptions
from combee_bench.surroundings import load_rows
from combee_dspy.exceptions import ArgumentError, ArgumentValueError
from combee_dspy.testing import ScriptedLM, as_chat
from plugins.bench.tests.obeying import RULE, obey

ROWS = {"train": 24, "validation": 24, "heldout": 24}
SIZES = {**ROWS, "max_tokens": 64}


@pytest.fixture
def lm(monkeypatch: pytest.MonkeyPatch) -> ScriptedLM:
    result = ScriptedLM(obey)
    monkeypatch.setattr(real, "model_lm", lambda name, **where: (result, None))
    return result


def options(folder: Path, **given: object) -> RealOptions:
    chosen = {
        "lm": "openai/m",
        "methods": ("gepa", "combee", "few-shot"),
        "seeds": (0, 1),
        "tokens": 20_000,
    }
    return RealOptions(folder=str(folder), **{**chosen, **SIZES, **given})


def test_methods_get_one_budget_and_what_they_learned_is_counted(lm, tmp_path: Path) -> None:
    rows = list(real.run(options(tmp_path)))
    assert (rows[0].method, rows[0].seed) == ("untouched", 0)
    assert sorted((row.method, row.seed) for row in rows[1:]) == [
        (method, seed) for method in ("combee", "few-shot", "gepa") for seed in (0, 1)
    ]
    assert [row.method for row in rows[1:]] != sorted(row.method for row in rows[1:]), (
        "the order is drawn"
    )
    untouched, combee = rows[0], next(row for row in rows if row.method == "combee")
    assert (sum(untouched.after), untouched.kept, untouched.rules) == (0.0, 0, 24)
    heldout = load_rows("house-rules", {}, **ROWS).heldout.examples
    assert combee.kept > 0
    assert combee.after == tuple(float(row.rule in combee.prompt) for row in heldout)
    assert 0 < sum(combee.tokens.values()) <= 20_000 + 1_000
    assert combee.tokens["reflect"] > 0
    real.table(options(tmp_path), rows)
    page = (tmp_path / "real.md").read_text()
    assert "| combee | Combee, its defaults | 2 | " in page
    assert "A message about a" in page


def test_a_smaller_model_may_be_asked_fewer_rules(lm, tmp_path: Path) -> None:
    chosen = options(tmp_path, methods=("gepa",), seeds=(0,), tokens=2_000, rules=6)
    assert {row.rules for row in real.run(chosen)} == {6}
    with pytest.raises(ArgumentValueError, match="other options: rules"):
        list(real.run(options(tmp_path, methods=("gepa",), seeds=(0,), tokens=2_000)))


def test_another_rule_set_has_other_rules(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    met = []
    for number, chosen in enumerate(({}, {"rule_set": 0}, {"rule_set": 101})):
        lm = ScriptedLM(obey)
        monkeypatch.setattr(real, "model_lm", lambda name, lm=lm, **where: (lm, None))
        list(
            real.run(
                options(tmp_path / str(number), methods=("gepa",), seeds=(0,), rules=6, **chosen)
            )
        )
        met.append({rule for request in lm.requests for rule in re.findall(RULE, request.text)})
    default, first, other = met
    assert default == first
    assert first
    assert not first & other


def test_a_reflector_may_be_kept_from_the_answers(lm, tmp_path: Path) -> None:
    methods = ("gepa", "union-4", "union-4-feedback")
    chosen = options(tmp_path, methods=methods, seeds=(0,), tokens=12_000)
    shown, read = {}, 0
    for row in real.run(chosen):
        asked = [
            request.text
            for request in lm.requests[read:]
            if "examples_with_feedback" in request.text
        ]
        shown[row.method], read = (
            any("Generated Outputs" in text for text in asked),
            len(lm.requests),
        )
    assert (shown["union-4"], shown["union-4-feedback"]) == (True, False)


def test_an_interrupted_study_goes_on_and_nothing_is_run_twice(lm, tmp_path: Path) -> None:
    begun = real.run(options(tmp_path))
    first = [next(begun) for _ in range(3)]
    begun.close()
    asked = len(lm.requests)
    again = real.run(options(tmp_path))
    assert [next(again) for _ in range(3)] == first
    assert len(lm.requests) == asked
    again.close()
    order = json.loads((tmp_path / "plan.json").read_text())["order"]
    assert [[row.method, row.seed] for row in first] == order[:3]
    with pytest.raises(ArgumentValueError, match="other options: tokens"):
        next(real.run(options(tmp_path, tokens=30_000)))


def test_what_an_interrupted_run_left_is_not_gone_on_with(lm, tmp_path: Path) -> None:
    chosen = {"methods": ("gepa", "union-4"), "seeds": (0,)}
    whole = list(real.run(options(tmp_path / "whole", **chosen)))
    shutil.copytree(tmp_path / "whole" / "logs", tmp_path / "cut" / "logs")
    again = list(real.run(options(tmp_path / "cut", **chosen)))
    # A search that goes on with an old log has bought what is in no budget of this one.
    assert [row.prompt for row in again] == [row.prompt for row in whole]
    bought = [sum(row.tokens.values()) for row in again]
    assert bought == pytest.approx([sum(row.tokens.values()) for row in whole], abs=1_000)


def test_hours_make_the_budget(lm, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    next(real.run(options(tmp_path, hours=0.02)))
    said = capsys.readouterr().err
    assert "about 0.0 hours" in said
    assert not re.search(r" 20,000 tokens each", said)
    with pytest.raises(ArgumentValueError, match="hours"):
        next(real.run(options(tmp_path / "b", hours=1e-9)))


def test_few_training_rows_foretell_the_same_readings(lm, tmp_path: Path) -> None:
    next(real.run(options(tmp_path / "many")))
    next(real.run(options(tmp_path / "few", train=4)))
    many, few = (json.loads((tmp_path / one / "plan.json").read_text()) for one in ("many", "few"))
    assert few["reading_tokens"] == pytest.approx(many["reading_tokens"], rel=0.2)


def test_a_model_that_counts_no_tokens_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import litellm

    class Silent(dspy.LM):
        def forward(self, *args: object, **kwargs: object) -> object:
            response = litellm.ModelResponse(
                choices=[{"message": {"content": as_chat({"answer": "?"})}}], model="m"
            )
            response.usage = {}
            return response

    monkeypatch.setattr(
        real, "model_lm", lambda name, **where: (Silent("openai/m", cache=False), None)
    )
    with pytest.raises(ArgumentValueError, match="counts no tokens"):
        next(real.run(options(tmp_path)))


@pytest.mark.parametrize(
    "given",
    [
        {"methods": ("gepa", "best")},
        {"methods": ("combee",)},
        {"methods": ("gepa", "gepa")},
        {"file": "a.gguf"},
        {"lm": "embedded", "api_base": "http://a"},
        {"lm": "openai/m", "reflection_file": "b.gguf"},
        {"lm": "embedded", "reflection_api_base": "http://b"},
    ],
)
def test_what_cannot_be_run_is_refused(given: dict[str, object], tmp_path: Path) -> None:
    with pytest.raises(ArgumentError):
        options(tmp_path, **given)


def test_a_rule_counts_where_one_line_has_what_tells_it() -> None:
    rules = [
        "A message about a kettle gets the code X7.",
        "A message about a lamp goes to the desk Morvane.",
    ]
    assert real.count_rules("kettle: X7\nlamp: Corwick", rules) == 0
    assert real.count_rules("- message about a kettle gets the code X7", rules) == 1
    assert (
        real.count_rules(
            "A message about a kettle gets the code X7. The lamp: goes to desk Morvane", rules
        )
        == 2
    )
