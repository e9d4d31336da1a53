"""Combee as a new user tries it: a real program, a service that it has not seen, beside
``dspy.GEPA``.
"""

from __future__ import annotations

import logging
import random
from pathlib import Path
from typing import Any

import dspy
import pytest

from combee_dspy import Combee, Search
from combee_dspy.cli import main
from combee_dspy.exceptions import InfrastructureError, TooManyFailuresError
from combee_dspy.journal import Reader, RunHistory, journal_file
from combee_dspy.rollouts import _patient
from combee_dspy.tracking import runs
from combee_dspy.tracking._metrics import end_metrics
from tests.journeys.minds import JOURNEYS, Journey
from tests.journeys.server import Asked, Failure, Server
from tests.slow import slow_but
from tests.worlds import rows


def compiled(journey: Journey, server: Server, folder: Path, **kwargs: Any) -> Any:
    given = {
        "max_metric_calls": journey.budget,
        "log_dir": folder,
        "reflection_lm": server.lm("teacher"),
        **kwargs,
    }
    with dspy.context(lm=server.lm("student")):
        return Combee(given.pop("metric", journey.metric), **given).compile(
            journey.program(), **journey.splits()
        )


def by_gepa(journey: Journey) -> float:
    """Return the held-out percentage of ``dspy.GEPA`` at the same budget."""
    splits = journey.splits()
    heldout = splits.pop("heldout")
    with Server(journey.mind) as server, dspy.context(lm=server.lm("student")):
        optimizer = dspy.GEPA(
            metric=journey.metric,
            max_metric_calls=journey.budget,
            reflection_lm=server.lm("teacher"),
            num_threads=4,
        )
        program = optimizer.compile(journey.program(), **splits)
        return dspy.Evaluate(devset=heldout, metric=journey.metric, num_threads=4)(program).score


def _counts_agree(
    report: Any, said: list[str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One count of rollouts wherever they are counted, and what has no price is unknown wherever it
    is shown.
    """
    with Reader(journal_file(folder)) as reader:
        metrics = end_metrics(RunHistory(reader, 1))
    counted = rows(
        folder, "SELECT count(*) AS n FROM effect WHERE kind = 'rollout' AND split <> 'heldout'"
    )
    assert {counted[0]["n"], metrics["cost/rollouts"], runs(folder)[0]["rollouts"]} == {
        report.rollouts
    }
    (ended,) = (one for one in said if "finished" in one)
    assert f"{report.rollouts} of " in ended
    assert "$" not in ended, "no line names dollars that nobody knows"
    assert "cost/dollars" not in metrics
    for command in ("runs --json", "show"):
        with pytest.raises(SystemExit):
            main([*command.split(), str(folder)])
        out = capsys.readouterr().out
        assert str(report.rollouts) in out
        assert ("dollars unknown" if command == "show" else '"dollars": null') in out


@pytest.mark.parametrize("name", slow_but(("classification",), JOURNEYS))
def test_a_new_users_first_run_learns_no_less_than_gepa(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    journey = JOURNEYS[name]
    with Server(journey.mind) as server:
        with caplog.at_level(logging.INFO, logger="combee_dspy"):
            program = compiled(journey, server, tmp_path)
        report, costs = program.combee_report, program.combee_report.costs
        assert report.heldout.after > report.heldout.before
        assert report.rollouts <= journey.budget
        for role, model in (("task", "student"), ("proposer", "teacher")):
            booked = costs.by_role[role]
            assert booked.calls == server.answered[model]
            assert (booked.prompt_tokens, booked.completion_tokens) == (
                server.prompt[model],
                server.completion[model],
            )
        said = [one.getMessage() for one in caplog.records if one.name == "combee_dspy.progress"]
        assert any("seed: validation" in one for one in said)
        assert any("update 0: " in one and f"of {journey.budget} rollouts" in one for one in said)
        assert any(
            "held-out" in one and f"n = {len(journey.splits()['heldout'])}" in one for one in said
        )
        if name != "typed":  # an eighth of whose first answers do not parse
            assert report.supports_claims, report.warnings
            warned = [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]
            assert not warned

        bought = server.total
        again = compiled(journey, server, tmp_path)
        assert server.total - bought <= 2, "a probe of each LM at most"
        assert again.combee_report.texts == report.texts

        for command, shown in (
            ("report", "report.html"),
            ("rollouts --table", "validation"),
            ("candidates --table", "chosen"),
        ):
            with pytest.raises(SystemExit) as ended:
                main([*command.split(), str(tmp_path)])
            assert not ended.value.code
            assert shown in capsys.readouterr().out
        assert (tmp_path / "report.html").stat().st_size > 1000
    _counts_agree(report, said, tmp_path, capsys)
    assert round(100 * report.heldout.after, 2) >= by_gepa(journey)
    lines = [
        [line for line in text.splitlines() if line.startswith("- ")]
        for text in report.texts.values()
    ]
    assert any(lines)
    assert all(len(one) == len(set(one)) for one in lines), "no lesson stands there twice"


def test_reflections_that_cannot_be_read_end_the_run_and_say_so(tmp_path: Path) -> None:
    journey = JOURNEYS["classification"]

    def mumbling(asked: Asked) -> str:
        return "I would rather not." if asked.model == "teacher" else journey.mind(asked)

    with (
        Server(mumbling) as server,
        pytest.raises(TooManyFailuresError, match="proposer calls unparsed") as caught,
    ):
        compiled(journey, server, tmp_path)
    assert caught.value.remedy


@pytest.mark.slow
def test_refusals_by_chance_cost_no_row_its_score(tmp_path: Path) -> None:
    journey, chance = JOURNEYS["facts"], random.Random(0)

    def busy(asked: Asked) -> str | Failure:
        return Failure(429) if chance.random() < 0.3 else journey.mind(asked)

    with Server(busy) as server:
        report = compiled(journey, server, tmp_path, search=Search(patience=30)).combee_report
    assert sum(server.refused.values()) > 10
    assert report.heldout.after > report.heldout.before
    assert not rows(tmp_path, "SELECT 1 FROM effect WHERE kind = 'rollout' AND error IS NOT NULL")


def test_a_metric_that_raises_on_one_row_is_named_and_ends_nothing(tmp_path: Path) -> None:
    journey = JOURNEYS["classification"]

    def fragile(
        gold: Any, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None
    ) -> Any:
        if "case 3." in gold.message:
            raise KeyError("reference")
        return journey.metric(gold, pred)

    with Server(journey.mind) as server:
        report = compiled(journey, server, tmp_path, metric=fragile).combee_report
    assert report.heldout.after > report.heldout.before
    assert any(one.cause == "unscored" for one in report.failures)
    assert rows(tmp_path, "SELECT error FROM effect WHERE error LIKE '%reference%'")


@pytest.mark.parametrize(
    "page",
    [
        Failure(200, "<html><body>Maintenance</body></html>", "text/html"),
        pytest.param(Failure(200, "busy", "text/plain"), marks=pytest.mark.slow),
        Failure(200, '{"choices": ['),
        pytest.param(Failure(200, ""), marks=pytest.mark.slow),
    ],
    ids=["html", "plain", "torn", "empty"],
)
@pytest.mark.parametrize("passes", slow_but((False,), [False, True]))
def test_a_reply_that_is_none_of_the_apis_is_no_wrong_answer(
    page: Failure, passes: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_patient, "pause_after", lambda retry_after, count: 0.02)
    journey = JOURNEYS["classification"]

    def falling(asked: Asked) -> str | Failure:
        down = server.total > 30 and (not passes or sum(server.refused.values()) < 10)
        return page if down else journey.mind(asked)

    with Server(falling) as server:
        if passes:
            report = compiled(journey, server, tmp_path).combee_report
            assert report.heldout.after == 1.0
            assert sum(server.refused.values()) == 10
        else:
            with pytest.raises(InfrastructureError, match="not JSON"):
                compiled(journey, server, tmp_path, search=Search(patience=1))
    assert not rows(tmp_path, "SELECT 1 FROM effect WHERE kind = 'rollout' AND error IS NOT NULL")
