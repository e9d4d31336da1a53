"""The study on a real model: its cells, its runner and its tables, with a scripted model."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from pathlib import Path

import pytest

from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.testing import ScriptedLM, ScriptedRequest, as_json
from plugins.bench.tests.obeying import obey
from studies.real import cells, readers, study
from studies.real.calls import alikeness
from studies.real.cells import StudyOptions
from studies.real.labels import TAGS, load_labels
from studies.real.plan import PARTS, Cell, planned
from studies.real.tables import over_tasks, read_cells, tables


def _in_json(request: ScriptedRequest) -> str:
    """Obey the rules in the prompt with one of the codes, as a service that enforces schemas."""
    answer = obey(request)
    if "[[ ## answer ## ]]" not in answer:
        return answer
    code = answer.split("[[ ## answer ## ]]")[1].split("[[")[0].strip()
    choices = re.search(r"one of: ([\w; ]+)", request.text)
    assert choices is not None
    codes = choices[1].split("; ")
    return as_json({"answer": code if code in codes else codes[0]})


@pytest.fixture
def lm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cells, "model_lm", lambda name, **where: (ScriptedLM(_in_json), None))


def options(folder: Path, **chosen: object) -> StudyOptions:
    return StudyOptions(lm="openai/m", folder=folder, tokens=6_000, **chosen)


def run_cells(
    monkeypatch: pytest.MonkeyPatch, chosen: StudyOptions, *names: str
) -> list[study.Outcome]:
    chosen_cells = [Cell("sets", name, 6, 611) for name in names]
    monkeypatch.setattr(study, "planned", lambda part: iter(chosen_cells))
    return list(study.run(StudyOptions(**{**vars_of(chosen), "parts": ("sets",)})))


def vars_of(chosen: StudyOptions) -> dict[str, object]:
    return {name: getattr(chosen, name) for name in StudyOptions.__dataclass_fields__}


def test_each_cell_is_run_once_and_its_tables_are_drawn_again(
    lm, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    names = ("combee", "ceiling", "floor")
    first = run_cells(monkeypatch, options(tmp_path, cells=2), *names)
    assert {outcome.cell.method: outcome.problem for outcome in first} == dict.fromkeys(names, "")
    assert run_cells(monkeypatch, options(tmp_path, cells=2), *names) == []
    finished = {done.cell.method: done.learned for done in read_cells(tmp_path / "cells.jsonl")}
    ceiling, floor = finished["ceiling"], finished["floor"]
    assert ceiling is not None
    assert floor is not None
    assert (sum(ceiling.scores), ceiling.kept, ceiling.calls) == (24.0, 6, 24)
    assert sum(floor.scores) == 4.0
    combee = finished["combee"]
    assert combee is not None
    assert 0 < sum(combee.tokens.values()) <= 7_000
    page = tables(read_cells(tmp_path / "cells.jsonl"))
    assert "| 611 | " in page
    assert "1.000" in page


def test_traces_teach_without_a_rollout(
    lm, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    chosen = StudyOptions(**{**vars_of(options(tmp_path)), "tokens": 30_000})
    (outcome,) = run_cells(monkeypatch, chosen, "traces")
    assert outcome.finished is not None, outcome.problem
    learned = outcome.finished.learned
    assert learned is not None
    # The sixth rule's code is what the model guesses.
    assert (sum(learned.scores), learned.kept) == (24.0, 5)


def test_a_cell_that_fails_or_takes_too_long_is_named_and_run_again(
    lm, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def break_down(cell: Cell, chosen: StudyOptions) -> object:
        if cell.method == "floor":
            raise OSError("no such service")
        time.sleep(60)
        return None

    monkeypatch.setattr(study, "measure", break_down)
    broken = run_cells(monkeypatch, options(tmp_path, cells=2, limit=1), "floor", "ceiling")
    problems = {outcome.cell.method: outcome.problem for outcome in broken}
    assert "no such service" in problems["floor"]
    assert problems["ceiling"] == "took too long"
    monkeypatch.setattr(study, "measure", cells.measure)
    again = run_cells(monkeypatch, options(tmp_path), "floor", "ceiling")
    assert [outcome.problem for outcome in again] == ["", ""]


def test_the_plan_names_each_cell_once() -> None:
    cells_of_all = [cell for part in PARTS for cell in planned(part)]
    assert max(Counter(cell.name for cell in cells_of_all).values()) == 1
    assert [cell.method for cell in cells_of_all[:3]] == ["gepa", "combee", "union"]
    assert {cell.tokens for cell in planned("wide")} == {90_000}


def test_a_fifth_of_the_training_labels_is_wrong_and_feedback_agrees() -> None:
    clean = cells.load_study_rows(Cell("decide", "combee", 6, 671), StudyOptions())
    wrong = cells.load_study_rows(Cell("wrong", "combee", 6, 671), StudyOptions())
    differ = [
        (before, after)
        for before, after in zip(clean.train.examples, wrong.train.examples, strict=True)
        if before.answer != after.answer
    ]
    assert len(differ) == 5
    for before, after in differ:
        assert after.message == before.message
        assert after.rule == before.rule.replace(before.answer, after.answer)
    assert wrong.heldout.examples == clean.heldout.examples
    assert wrong.validation.examples == clean.validation.examples


@pytest.mark.parametrize("part", [part for part in PARTS if part != "retention"])
def test_each_part_of_the_plan_has_a_table(part: str) -> None:
    cell = next(planned(part))
    learned = cells.Learning((1.0, 0.0), {"task": 10}, 1.0, 3, 4, 40, "Answer.")
    page = tables([cells.Finished(cell, "2026-11-26T19:46:50+00:00", "m", learned)])
    assert f"| {cell.number} | 0.500 |" in page


def test_unusable_options_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentValueError, match="no part of the study"):
        list(study.run(options(tmp_path, parts=("nothing",))))
    with pytest.raises(ArgumentValueError, match="FiNER"):
        list(study.run(options(tmp_path, parts=("labels",))))


def test_a_difference_is_over_tasks() -> None:
    difference = over_tasks([0.1, 0.2, 0.3])
    assert difference.interval.mean == pytest.approx(0.2)
    # 4.303 standard errors of 0.1 / √3.
    assert difference.interval.low == pytest.approx(0.2 - 0.2484, abs=1e-3)
    assert (difference.chance, difference.ahead, difference.behind) == (0.25, 3, 0)


def test_labels_are_dealt_evenly_under_drawn_codes(tmp_path: Path) -> None:
    for split in ("train", "validation", "test"):
        lines = []
        for number in range(4):
            questions = "\n".join(
                f'{place}. What is best tag for entity "{number}{place}" in sentence: "{split}'
                f' {number} {place}?"'
                for place in range(1, 5)
            )
            lines.append(json.dumps({"context": questions, "target": ",".join(TAGS)}))
        (tmp_path / f"{split}.jsonl").write_text("\n".join(lines))
    rows = load_labels(tmp_path, 0, 12, 4, 16)
    for part, size in zip(rows.splits, (12, 4, 16), strict=True):
        assert set(Counter(row.answer for row in part.examples).values()) == {size // 4}
    assert "test" in rows.heldout.examples[0].sentence
    assert rows.heldout.examples[0].rule in rows.lessons
    others = [load_labels(tmp_path, number, 12, 4, 16).lessons for number in range(1, 4)]
    assert any(lessons != rows.lessons for lessons in others)


def test_the_published_figures_are_those_of_the_committed_cells() -> None:
    finished = read_cells(Path(cells.__file__).with_name("cells.jsonl"))
    page = (Path(__file__).parents[3] / "docs/results/models.md").read_text(encoding="utf-8")
    drawn = tables(finished).splitlines()
    published = [line for line in drawn if re.match(r"\| 6\d\d \| .* \|$", line)][:16]
    assert len(published) == 16
    for line in published:
        assert line in page
    assert any("| `combee` | 16 | 0.518 | +0.299 (+0.189 to +0.410)" in line for line in drawn)
    assert "+0.299 (95 % over sets +0.189 to +0.410)" in page


def test_the_pages_have_the_tables_of_the_committed_reads() -> None:
    finished = read_cells(Path(cells.__file__).with_name("cells.jsonl"))
    rows = [done.retained for done in finished if done.retained is not None]
    folder = Path(__file__).parents[3] / "docs/results"
    pages = "".join((folder / name).read_text() for name in ("information.md", "defaults.md"))
    shares = Counter(figures(line) for line in pages.splitlines() if line.startswith("|"))
    drawn = [line for line in readers.tables(rows) if re.search(r"\d\.\d\d", line)]
    # The first table stands on the page in other words.
    drawn = drawn[3:]
    assert len(drawn) == 15 + 3 + 5
    for line in drawn:
        assert shares[figures(line)], line


def figures(line: str) -> tuple[str, ...]:
    """Return the shares of a line of a table, without what a page marks."""
    return tuple(re.findall(r"[+−-]?\d\.\d\d", line.replace("−", "-")))


def test_calls_of_a_cell_are_alike_or_not() -> None:
    alike, chance = alikeness([[0.1, 0.1, 0.1], [0.9, 0.9, 0.9], [0.5, 0.5, 0.5]])
    assert (alike, chance < 0.02) == (1.0, True)
    alike, chance = alikeness([[0.1, 0.9], [0.9, 0.1], [0.5, 0.5]])
    assert alike == -1.0
    assert chance == 1.0
