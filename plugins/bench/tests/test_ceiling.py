"""Floor and ceiling, on models whose answers are known."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from combee_bench import ceiling
from combee_bench.options import CeilingOptions
from combee_dspy.exceptions import ArgumentError, ArgumentValueError
from combee_dspy.testing import ScriptedLM, ScriptedRequest, as_chat
from plugins.bench.tests.obeying import obey


def _run(monkeypatch: pytest.MonkeyPatch, **given: object) -> list[ceiling.CeilingRow]:
    lm = ScriptedLM(obey)
    monkeypatch.setattr(ceiling, "model_lm", lambda name, **where: (lm, None))
    return list(ceiling.run(CeilingOptions(lm="openai/m", **given)))


def test_who_obeys_reaches_the_ceiling_and_nobody_guesses_the_rules(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = _run(monkeypatch, seeds=(0, 1), heldout=24)
    assert [(row.prompt, row.seed, sum(row.scores), len(row.answers)) for row in rows] == [
        ("floor", 0, 0.0, 24),
        ("ceiling", 0, 24.0, 24),
        ("floor", 1, 0.0, 24),
        ("ceiling", 1, 24.0, 24),
    ]
    assert rows[1].answers != rows[3].answers, "each seed has rules of its own"
    table = ceiling.table(CeilingOptions(lm="openai/m"), rows)
    assert list(table.columns[1].cells) == ["0/48", "48/48"]
    assert list(table.columns[2].cells) == ["0% (0% to 7%)", "100% (93% to 100%)"]


def test_a_smaller_model_may_be_asked_fewer_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = _run(monkeypatch, seeds=(0,), heldout=12, rules=6)
    assert len(set(rows[1].answers)) < 12, (
        "each of six rules is asked twice; letters alone bear an order's number"
    )
    assert [sum(row.scores) for row in rows] == [0.0, 12.0]


def test_a_smaller_model_may_choose_among_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    floor, ceiling = _run(monkeypatch, seeds=(0,), heldout=12, rules=6, choices=True)
    # "I do not know" is no code, so no row of the floor has an answer.
    assert (sum(floor.scores), sum(ceiling.scores)) == (0.0, 12.0)
    assert all(re.fullmatch(r"\w\d", answer) for answer in ceiling.answers)


def test_a_benchmark_without_lessons_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ArgumentValueError, match="no lessons"):
        _run(monkeypatch, benchmark="formula-mini", heldout=12)


def test_a_file_reaches_the_embedded_model(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, object] = {}

    def made(name: str, **where: object) -> tuple[ScriptedLM, None]:
        asked.update(where, name=name)
        return ScriptedLM(obey), None

    monkeypatch.setattr(ceiling, "model_lm", made)
    next(ceiling.run(CeilingOptions(file="a.gguf,b.gguf", sha256="0" * 64, slots=2, heldout=2)))
    own = {"slots": 2, "context": 2048, "max_tokens": 256}
    assert asked == {"name": "embedded", "file": ["a.gguf", "b.gguf"], "sha256": "0" * 64, **own}


def test_rows_and_lessons_of_ones_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = (
        "Use formula Twice. Formula: Twice = 2 x, Explanation: x: it. Question: What is twice {}?"
        " Answer:"
    )
    for split, first in (("train", 10), ("validation", 20), ("test", 30)):
        rows = [
            {"context": asked.format(n), "target": f"{2 * n}.0"} for n in range(first, first + 6)
        ]
        (tmp_path / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    (tmp_path / "lessons.txt").write_text("Twice is 2 x.\n\nSay it in cents.\n", encoding="utf-8")

    def answer(request: ScriptedRequest) -> str:
        number = re.search(r"twice (\d+)", request.last)
        assert number is not None
        told = all(
            f"- {lesson}" in request.system for lesson in ("Twice is 2 x.", "Say it in cents.")
        )
        return as_chat(
            {"reasoning": "", "answer": f"{2 * int(number[1]) + 0.001:.3f}" if told else "0"}
        )

    lm = ScriptedLM(answer)
    monkeypatch.setattr(ceiling, "model_lm", lambda name, **where: (lm, None))
    given = {
        "lm": "openai/m",
        "benchmark": "formula",
        "path": tmp_path,
        "lessons": tmp_path / "lessons.txt",
    }
    rows = list(ceiling.run(CeilingOptions(**given, seeds=(0, 1), heldout=4, tolerant=True)))
    assert [(row.prompt, sum(row.scores)) for row in rows] == [("floor", 0), ("ceiling", 4)] * 2
    assert rows[1].answers != rows[3].answers, "each seed draws rows of its own"
    exact = list(ceiling.run(CeilingOptions(**given, seeds=(0,), heldout=6)))
    assert sum(exact[1].scores) == 0
    with pytest.raises(ArgumentValueError, match="more than the 6 rows"):
        next(ceiling.run(CeilingOptions(**given, heldout=7)))


def test_a_file_belongs_to_the_embedded_model() -> None:
    with pytest.raises(ArgumentError, match="embedded"):
        CeilingOptions(lm="openai/m", file="a.gguf")
