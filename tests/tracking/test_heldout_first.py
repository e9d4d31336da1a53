"""What held-out rows show is said first, and in the same words everywhere."""

from __future__ import annotations

import io
import logging
from pathlib import Path

import pytest
from rich.console import Console

from combee_dspy import CombeeReport
from combee_dspy.cli import main
from combee_dspy.costs import totals
from combee_dspy.evaluation import PairedDifference
from combee_dspy.journal import Reader, journal_file
from combee_dspy.tracking import write_report
from combee_dspy.tracking._metrics import description
from combee_dspy.tracking._progress import Display
from combee_dspy.tracking._runs import figures_of
from combee_dspy.verdicts import judge_difference
from tests.tracking.journals import Story

LOSS, LOSS_NOT_SHOWN, NO_GAIN, NOT_SHOWN, GAIN = CASES = (
    ("worse, n = 4", 0.25, -0.5, -0.1),
    ("lower, not shown to be worse, n = 4", 0.5, -0.5, 0.0),
    ("not shown to be better, n = 4", 0.75, 0.0, 0.0),
    ("not shown to be better, n = 4", 0.875, 0.0, 0.5),
    ("better, n = 4", 1.0, 0.125, 0.5),
)
BEFORE = 0.75


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run whose held-out rows went from 0.75 to something else, while validation went from 0.25
    to 1.
    """
    _, after, low, high = request.param
    figures = {
        "before": BEFORE,
        "after": after,
        "difference": after - BEFORE,
        "low": low,
        "high": high,
        "n": 4,
    }
    monkeypatch.setattr(Story, "heldout", figures)
    return Story(tmp_path).whole()


def everywhere(cases: tuple[tuple[str, float, float, float], ...]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        "place, case", [(case, case) for case in cases], indirect=["place"]
    )


@everywhere(CASES)
def test_mlflow_has_it_as_a_tag_and_first_in_the_description(
    place: Path, case: tuple[str, float, float, float]
) -> None:
    with Reader(journal_file(place)) as reader:
        assert str(figures_of(reader, 1).verdict) == case[0]
        first = description(reader, 1).splitlines()[0]
    assert first.startswith(
        f"Held-out {case[0]}: 0.750 → {case[1]:.3f} ({case[1] - BEFORE:+.3f}, interval "
    )


def test_a_run_without_a_held_out_set_has_no_verdict(tmp_path: Path) -> None:
    with Reader(journal_file(Story(tmp_path).write("begin"))) as reader:
        assert figures_of(reader, 1).verdict is None


@everywhere((LOSS, LOSS_NOT_SHOWN))
def test_a_loss_is_the_first_line_of_the_page(
    place: Path, case: tuple[str, float, float, float]
) -> None:
    page = write_report(place, place / "r.html").read_text(encoding="utf-8")
    first = page.partition('<section id="Result">\n')[2].lstrip().splitlines()[0]
    tone = "worse" if case is LOSS else "unshown"
    assert first.startswith(f'<p class="loss {tone}" role="alert"><b>Held-out {case[0]}</b>')
    assert f'<em class="{tone}">' in page


@everywhere((NO_GAIN, NOT_SHOWN, GAIN))
def test_only_a_gain_that_is_shown_has_its_colour_on_the_page(
    place: Path, case: tuple[str, float, float, float]
) -> None:
    page = write_report(place, place / "r.html").read_text(encoding="utf-8")
    assert 'class="loss' not in page
    tone = "better" if case is GAIN else "unshown"
    assert f'<b class="{tone}">{case[0].capitalize()}</b>: ' in page
    assert f'<em class="{tone}">' in page


@everywhere(CASES)
def test_the_log_ends_with_it_and_a_loss_is_a_warning(
    place: Path, case: tuple[str, float, float, float], caplog: pytest.LogCaptureFixture
) -> None:
    screen = io.StringIO()
    with Reader(journal_file(place)) as reader:
        display = Display(reader, 1, Console(file=screen, width=200, color_system=None))
        display.close()
    figures = f"held-out {case[0]}: 0.750 → {case[1]:.3f}"
    (last,) = [line for line in screen.getvalue().splitlines() if " finished: " in line]
    assert f"finished: {figures}, best 1.000" in last
    with (
        Reader(journal_file(place)) as reader,
        caplog.at_level(logging.INFO, "combee_dspy.progress"),
    ):
        display = Display(reader, 1, Console(file=screen, width=200, color_system=None))
        # As a run that has just ended, where logging is set up.
        display.news._event, display._logs = 0, True
        display.follow()
    (line,) = [record for record in caplog.records if "held-out" in record.getMessage()]
    assert f"{figures} (" in line.getMessage()
    assert (line.levelno == logging.WARNING) == (case in (LOSS, LOSS_NOT_SHOWN))


@everywhere(CASES)
def test_commands_say_it_first(
    place: Path, case: tuple[str, float, float, float], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["show", str(place)])
    said = capsys.readouterr().out
    assert said.startswith(f"held-out    {case[0]}: 0.750 → {case[1]:.3f} (")
    with pytest.raises(SystemExit):
        main(["runs", str(place), "--table"])
    assert f"0.750 → {case[1]:.3f} {case[0].rpartition(', n')[0]} " in " ".join(
        capsys.readouterr().out.split()
    )


@pytest.mark.parametrize("case", CASES)
def test_the_programs_report_begins_with_it(case: tuple[str, float, float, float]) -> None:
    what, after, low, high = case
    held = PairedDifference(BEFORE, after, after - BEFORE, low, high, 4, 0.95)
    report = CombeeReport("done", 0.25, 1.0, 100, 10, 1.0, totals([]), held)
    name, text = next(iter(report.facts().items()))
    assert (name, text.startswith(f"{what}: 0.750 → {after:.3f} (")) == ("held-out", True)
    assert str(report).splitlines()[0] == f"{'held-out':<20}{text}"
    assert report._repr_html_().startswith(f"<table><tr><th>held-out</th><td>{what}: ")


def test_the_ends_of_an_interval_that_touch_zero_show_nothing() -> None:
    assert str(judge_difference(0.1, 0.0, 0.2, 4)) == NOT_SHOWN[0]
    assert str(judge_difference(-0.1, -0.2, 0.0, 4)) == LOSS_NOT_SHOWN[0]
