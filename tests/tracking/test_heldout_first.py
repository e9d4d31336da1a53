"""What held-out rows show comes first, and in the same words everywhere."""

from __future__ import annotations

import io
import logging
from pathlib import Path
from typing import NamedTuple

import pytest
from rich.console import Console

from combee_dspy import CombeeReport
from combee_dspy.cli import main
from combee_dspy.costs import totals
from combee_dspy.evaluation import PairedDifference
from combee_dspy.journal import Reader, RunHistory, journal_file
from combee_dspy.tracking import write_report
from combee_dspy.tracking._metrics import description
from combee_dspy.tracking._progress import Display
from combee_dspy.tracking._runs import figures_of
from combee_dspy.verdicts import UNPROVEN, judge_difference
from tests.tracking.journals import Story

BEFORE = 0.75


class Case(NamedTuple):
    """Held-out figures after ``BEFORE``, what they are called, and how they are coloured."""

    verdict: str
    after: float
    low: float
    high: float
    tone: str

    @property
    def figures(self) -> dict[str, float]:
        difference = self.after - BEFORE
        values = {"before": BEFORE, "after": self.after, "difference": difference}
        return {**values, "low": self.low, "high": self.high, "n": 4}


@pytest.fixture(
    params=[
        Case("worse, n = 4", 0.25, -0.5, -0.1, "worse"),
        Case("lower, not shown to be worse, n = 4", 0.5, -0.5, 0.0, "unshown"),
        Case("not shown to be better, n = 4", 0.75, 0.0, 0.0, "unshown"),
        Case("not shown to be better, n = 4", 0.875, 0.0, 0.5, "unshown"),
        Case("better, n = 4", 1.0, 0.125, 0.5, "better"),
    ],
    ids=["loss", "loss not shown", "no gain", "gain not shown", "gain"],
)
def case(request: pytest.FixtureRequest) -> Case:
    result: Case = request.param
    return result


@pytest.fixture
def place(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run whose validation went from 0.25 to 1, whatever its held-out rows show."""
    monkeypatch.setattr(Story, "heldout", case.figures)
    return Story(tmp_path).whole()


def test_mlflow_has_it_as_a_tag_and_first_in_the_description(place: Path, case: Case) -> None:
    with Reader(journal_file(place)) as reader:
        history = RunHistory(reader, 1)
        assert str(figures_of(history).verdict) == case.verdict
        first = description(history).splitlines()[0]
    change = f"0.750 → {case.after:.3f} ({case.after - BEFORE:+.3f}, interval "
    assert first.startswith(f"Held-out {case.verdict}: {change}")


def test_a_run_without_a_held_out_set_has_no_verdict(tmp_path: Path) -> None:
    with Reader(journal_file(Story(tmp_path).write("begin"))) as reader:
        assert figures_of(RunHistory(reader, 1)).verdict is None


def test_the_page_has_it_in_its_colour_and_a_loss_as_its_first_line(
    place: Path, case: Case
) -> None:
    page = write_report(place, place / "r.html").read_text(encoding="utf-8")
    first = page.partition('<section id="Result">\n')[2].lstrip().splitlines()[0]
    alert = f'<p class="loss {case.tone}" role="alert"><b>Held-out {case.verdict}</b>'
    assert first.startswith(alert) == (case.after < BEFORE)
    assert f'<b class="{case.tone}">{case.verdict.capitalize()}</b>: ' in page
    assert f'<em class="{case.tone}">' in page


def test_the_log_ends_with_it_and_a_loss_is_a_warning(
    place: Path, case: Case, caplog: pytest.LogCaptureFixture
) -> None:
    console = Console(file=io.StringIO(), width=200, color_system=None)
    figures = f"held-out {case.verdict}: 0.750 → {case.after:.3f}"
    with (
        Reader(journal_file(place)) as reader,
        caplog.at_level(logging.INFO, "combee_dspy.progress"),
    ):
        display = Display(reader, 1, console)
        # As a run that has just ended, where logging is set up.
        display.news._event, display._logs = 0, True
        display.follow()
        display.close()
    first, last = [record for record in caplog.records if "held-out" in record.getMessage()]
    assert f"{figures} (" in first.getMessage()
    assert (first.levelno == logging.WARNING) == (case.after < BEFORE)
    assert f"finished: {figures}, chosen 1.000" in last.getMessage()


def test_commands_show_it_first(
    place: Path, case: Case, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["show", str(place)])
    change = f"0.750 → {case.after:.3f}"
    assert capsys.readouterr().out.startswith(f"held-out    {case.verdict}: {change} (")
    with pytest.raises(SystemExit):
        main(["runs", str(place), "--table"])
    row = " ".join(capsys.readouterr().out.split())
    assert f"{change} {case.verdict.rpartition(', n')[0]} " in row


def test_the_programs_report_begins_with_it(case: Case) -> None:
    held = PairedDifference(**case.figures, confidence=0.95)  # type: ignore[arg-type]
    report = CombeeReport("done", 0.25, 1.0, 100, 10, 1.0, totals([]), held)
    name, text = next(iter(report.facts().items()))
    assert name == "held-out"
    assert text.startswith(f"{case.verdict}: 0.750 → {case.after:.3f} (")
    assert str(report).splitlines()[0] == f"{'held-out':<20}{text}"
    assert report._repr_html_().startswith(f"<table><tr><th>held-out</th><td>{case.verdict}: ")


def test_a_report_without_heldout_rows_says_once_what_to_do() -> None:
    report = CombeeReport(
        "done", 0.2, 1.0, 9, 1, 1.0, totals([]), None, warnings=(UNPROVEN, "Few rows.")
    )
    assert str(report).count("compile(heldout=…)") == 1
    assert report.facts()["warnings"] == "Few rows."
    assert not report.supports_claims


@pytest.mark.parametrize("sign", [1, -1])
def test_an_interval_that_touches_zero_shows_nothing(sign: int) -> None:
    low, high = sorted((0.0, sign * 0.2))
    assert judge_difference(sign * 0.1, low, high, 4).tone == "unshown"
