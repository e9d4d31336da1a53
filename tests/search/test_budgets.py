"""Budgets: nothing beyond them is bought, what ended a run is recorded, and a larger one goes
on.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import sqlite3
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import dspy
import numpy as np
import pytest
from dspy.utils.exceptions import LMServerError

from combee_dspy import Budget, Combee, Costs, Price, Search, Validation
from combee_dspy.evaluation import Calibration
from combee_dspy.events import CostReserved, RunStarted
from combee_dspy.exceptions import ArgumentValueError, InfrastructureError
from combee_dspy.journal import Reader, RunLog
from combee_dspy.journal._writer import Writer
from combee_dspy.records import CallUsage
from combee_dspy.rollouts import _patient
from combee_dspy.search import _earlier
from combee_dspy.search._amounts import LargestCall, Lost
from combee_dspy.search._budget import Purse
from combee_dspy.search._candidates import Compilation
from combee_dspy.search._earlier import earlier_costs, lost_effects
from combee_dspy.search._growing import Growing
from combee_dspy.search._time_budget import BudgetReached
from combee_dspy.stopping import Limits, Patience, StoppingRule, Target
from combee_dspy.testing import ScriptedLM
from tests.slow import slow_but
from tests.worlds import (
    TwoSteps,
    World,
    animal_of,
    code_word,
    events,
    examples,
    gepa_metric,
    in_kind,
    metric,
    proposer_answer,
    rows,
    task_answer,
)


@pytest.mark.parametrize("limit", slow_but((47,), [24, 47, 100]))
@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"search": Search(staleness=2)},
        {"search": Search(keep="trunk", staleness=1)},
        {"operators": ["insert", "few-shot-swap", "rewrite"]},
        {"validation": Validation(draws=2)},
        {"cache": False},
    ],
    ids=["plain", "stale", "trunk", "children", "draws", "no cache"],
)
def test_never_more_rollouts_than_granted(
    tmp_path: Path, limit: int, arguments: dict[str, Any]
) -> None:
    world = World.made(temperature=1.0)
    with dspy.context(lm=world.task_lm, adapter=dspy.ChatAdapter()):
        report = (
            world.combee(
                max_metric_calls=limit, log_dir=tmp_path, reflection_minibatch_size=7, **arguments
            )
            .compile(
                dspy.Predict("question -> answer"), trainset=examples(30), valset=examples(12, 100)
            )
            .combee_report
        )
    (bought,) = rows(tmp_path, "SELECT count(*) AS n FROM effect WHERE kind = 'rollout'")
    assert bought["n"] == report.rollouts == len(world.task_lm.requests) <= limit


@pytest.mark.parametrize("staleness", slow_but((1,), [0, 1, 2]))
@pytest.mark.parametrize("limit", [16, 27])
def test_rows_that_learn_and_compare_pass_no_budget(limit: int, staleness: int) -> None:
    """Without a valset, texts that are not validated run rows that no validation pays for."""

    def never(gold: Any, pred: Any, *_: Any) -> Any:
        number = re.findall(r"\d+", gold.question)[0]
        feedback = f"Wrong. Rule: the word for number{number} is {gold.answer}"
        return dspy.Prediction(score=0.0, feedback=feedback)

    world = World.made()
    report = world.compile(
        metric=gepa_metric(never),
        train=8,
        validation=0,
        max_metric_calls=limit,
        reflection_minibatch_size=1,
        search=Search(staleness=staleness),
    ).combee_report
    assert report.rollouts == len(world.task_lm.requests) <= limit


def test_a_budget_below_the_students_validation_is_refused_before_anything_is_bought(
    world: World,
) -> None:
    with pytest.raises(ArgumentValueError, match="which takes 8 rollouts") as caught:
        world.compile(max_metric_calls=7)
    assert "Give a larger budget, or a smaller valset" in str(caught.value)
    assert not world.asked
    with pytest.raises(ArgumentValueError, match="in the middle of the student's validation"):
        world.compile(budget=Budget(calls=5))
    assert len(world.task_lm.requests) <= 5


def test_a_small_budget_compares_on_as_many_rows_as_it_pays_four_times(
    world: World, tmp_path: Path
) -> None:
    def run(budget: int, folder: str = "run") -> tuple[Any, set[str]]:
        report = world.compile(
            max_metric_calls=budget,
            validation=30,
            log_dir=tmp_path / folder,
            reflection_minibatch_size=3,
        ).combee_report
        wanted = "SELECT DISTINCT example FROM effect WHERE purpose = 'validation'"
        return report, {row["example"] for row in rows(tmp_path / folder, wanted)}

    small, compared = run(40)
    assert len(compared) == 10
    assert any("on 10 of 30 validation rows" in text for text in small.warnings)
    assert small.best_score > small.seed_score, "the last text was compared, too"
    asked = len(world.task_lm.requests)
    large, same = run(60)
    assert same == compared, "a run goes on with the rows that it began with"
    assert len(world.task_lm.requests) - asked == large.rollouts - small.rollouts
    whole, all_rows = run(120, "other")
    assert len(all_rows) == 30
    assert not any("validation rows" in text for text in whole.warnings)


def test_a_run_that_recorded_no_such_decision_goes_on_as_it_began(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run() -> Any:
        return world.compile(max_metric_calls=100, validation=30, log_dir=tmp_path).combee_report

    async def begin(growing: Growing) -> None:
        growing._blames = False

    with monkeypatch.context() as patched:  # as before these decisions were recorded
        patched.setattr(Growing, "begin", begin)
        patched.setattr(Compilation, "draw_validation", lambda task, _: task.splits.validation)
        first = run()
    asked = world.asked
    again = run()
    assert (again.updates, again.seed_score) == (first.updates, first.seed_score)
    new = world.asked - asked
    assert new <= 100 - first.rollouts, "it may test lines with what it had left, and buys no more"
    assert not any("validation rows" in text for text in again.warnings)


@pytest.mark.parametrize("auto", ["light"])
@pytest.mark.slow
def test_presets_buy_what_gepas_presets_buy(world: World, auto: Any) -> None:
    stock = dspy.GEPA(metric, auto=auto, reflection_lm=world.proposer_lm)
    theirs = stock.auto_budget(
        num_preds=1, num_candidates={"light": 6, "medium": 12}[auto], valset_size=12
    )
    # A trunk may leave a part of what it sets aside for tests of its lines.
    report = world.compile(
        auto=auto,
        reflection_minibatch_size=3,
        cache=False,
        skip_perfect_score=False,
        search=Search(keep="pareto"),
    ).combee_report
    assert theirs - 30 < report.rollouts <= theirs


@pytest.mark.parametrize(
    ("validation", "passes", "least", "most"), [(12, 2, 36, 2 * (24 + 12)), (0, 3, 48, 3 * 24)]
)
def test_full_evaluations_are_of_both_sets_as_in_gepa(
    world: World, validation: int, passes: int, least: int, most: int
) -> None:
    report = world.compile(
        validation=validation,
        max_full_evals=passes,
        reflection_minibatch_size=3,
        cache=False,
        skip_perfect_score=False,
        search=Search(keep="pareto"),
    ).combee_report
    assert least < report.rollouts <= most


@pytest.mark.parametrize("keep", ["pareto", "trunk"])
def test_one_full_evaluation_pays_for_one_update_as_in_gepa(
    world: World, tmp_path: Path, keep: Any
) -> None:
    report = world.compile(
        train=12, max_full_evals=1, log_dir=tmp_path, search=Search(keep=keep)
    ).combee_report
    assert len(events(tmp_path, "candidate")) > 1, report.warnings
    assert report.rollouts <= 2 * (12 + 3)


@pytest.mark.parametrize("staleness", slow_but((2,), [0, 2]))
@pytest.mark.parametrize("keep", ["pareto", "trunk"])
def test_calls_end_a_run_and_are_not_passed(tmp_path: Path, keep: Any, staleness: int) -> None:
    for limit in (30, 45, 60):
        world, place = World.made(), tmp_path / str(limit)
        report = world.compile(
            budget=Budget(calls=limit),
            log_dir=place,
            search=Search(keep=keep, staleness=staleness),
            heldout=6,
            reflection_minibatch_size=4,
            train=48,
            skip_perfect_score=False,
        ).combee_report
        assert str(limit) in report.reason
        sql = (
            "SELECT sum(u.calls) AS n FROM usage u JOIN effect e ON e.id = u.effect WHERE split ="
            " 'heldout'"
        )
        (held,) = rows(place, sql)
        # The held-out set is read beyond the budget of the search; once, where the student is the
        # result.
        assert held["n"] in (6, 12)
        assert report.heldout.n == 6
        assert world.asked - held["n"] <= limit
        assert report.costs.total.calls == world.asked
        assert events(place, "stopped")[0]["reason"] == report.reason


@pytest.mark.parametrize("limit", [12, 14, 20, 26, 34])
def test_updates_leave_room_for_the_students_validation(limit: int) -> None:
    """It begins behind the first minibatches, and without it there is no result."""
    world = World.made()
    report = world.compile(
        budget=Budget(calls=limit),
        search=Search(staleness=2),
        reflection_minibatch_size=4,
        train=48,
    ).combee_report
    assert world.asked <= limit
    assert report.seed_score == pytest.approx(2 / 12)


@pytest.mark.parametrize("keep", ["pareto", "trunk"])
@pytest.mark.parametrize("share", [1.2, 1.6])
def test_a_budget_for_little_more_than_an_update_pays_for_one_and_not_for_parts_of_several(
    keep: Any, share: float
) -> None:
    arguments: dict[str, Any] = {
        "search": Search(keep=keep, staleness=2),
        "reflection_minibatch_size": 8,
    }
    spent = (
        World.made().compile(budget=Budget(updates=1), **arguments).combee_report.costs.total.tokens
    )
    report = (
        World.made().compile(budget=Budget(tokens=round(share * spent)), **arguments).combee_report
    )
    assert report.best_score > report.seed_score


@pytest.mark.parametrize("name", ["tokens", "calls"])
@pytest.mark.parametrize(("rollouts", "staleness"), [(None, 0), (500, 0), (None, 2)])
@pytest.mark.parametrize("share", [1.1, 1.3, 1.6, 2.0])
def test_a_limit_on_cost_leaves_a_validation_for_the_last_text(
    tmp_path: Path, name: str, rollouts: int | None, staleness: int, share: float
) -> None:
    """Updates of few rows are not validated at once, and another that is cut leaves nothing. What
    the last validation ran on stays where the run is compiled again.
    """
    arguments: dict[str, Any] = {
        "search": Search(keep="trunk", staleness=staleness),
        "reflection_minibatch_size": 4,
    }
    total = World.made().compile(budget=Budget(updates=1), **arguments).combee_report.costs.total
    spent = total.calls if name == "calls" else total.tokens
    limits = {name: int(share * spent), "rollouts": rollouts}
    arguments |= {"budget": Budget(**limits), "log_dir": tmp_path}
    first = World.made().compile(**arguments).combee_report
    world = World.made()
    again = world.compile(**arguments).combee_report
    assert first.best_score > first.seed_score
    assert (again.best_score, again.reason) == (first.best_score, first.reason)
    assert not world.asked


@pytest.mark.parametrize(
    ("name", "share", "most"),
    [("tokens", 0.6, None), ("tokens", 0.7, None), ("tokens", 0.75, 200), ("calls", 0.9, None)],
)
def test_what_was_read_before_a_limit_on_cost_is_validated(
    tmp_path: Path, name: str, share: float, most: int | None
) -> None:
    """On half of the rows or more, and so again where the run is compiled again."""
    lm = {} if most is None else {"max_tokens": most}
    arguments: dict[str, Any] = {
        "search": Search(keep="trunk", staleness=0),
        "reflection_minibatch_size": 24,
        "train": 48,
    }
    unlimited = World.made(**lm).compile(budget=Budget(updates=1), **arguments)
    total = unlimited.combee_report.costs.total
    spent = total.calls if name == "calls" else total.tokens
    arguments |= {"budget": Budget(**{name: int(share * spent)}), "log_dir": tmp_path}
    report = World.made(**lm).compile(**arguments).combee_report
    assert report.best_score > report.seed_score
    if name == "tokens":
        assert rows(tmp_path, "SELECT * FROM effect WHERE key LIKE 'decision/cut-call/%'")
        assert not rows(tmp_path, "SELECT * FROM effect WHERE kind = 'rollout' AND step > 0")
    world = World.made(**lm)
    again = world.compile(**arguments).combee_report
    assert (again.best_score, again.reason) == (report.best_score, report.reason)
    assert not world.asked


@pytest.mark.parametrize("keep", ["pareto", "trunk"])
def test_a_validation_that_the_clock_may_cut_runs_on_every_other_row_first(keep: Any) -> None:
    world, budget = World.made(), Budget(updates=1, seconds=1_000)
    world.compile(budget=budget, search=Search(keep=keep), num_threads=1)
    asked = [
        (request.system, int(re.findall(r"Number (\d+)", request.last)[-1]))
        for request in world.task_lm.requests
    ]
    last = [number for system, number in asked if system == asked[-1][0] and number >= 100]
    assert last == [*range(100, 112, 2), *range(101, 112, 2)]


@pytest.mark.parametrize("limit", [42, 70, 94])
def test_screens_take_nothing_of_the_validation_after_them(tmp_path: Path, limit: int) -> None:
    report = (
        World.made()
        .compile(
            budget=Budget(calls=limit),
            search=Search(keep="pareto", staleness=0),
            reflection_minibatch_size=8,
            train=48,
            log_dir=tmp_path,
        )
        .combee_report
    )
    sql = "SELECT DISTINCT step FROM effect WHERE kind = 'rollout' AND purpose = 'screen'"
    assert 0 < len(rows(tmp_path, sql)) == report.updates
    sql = "SELECT key FROM effect WHERE kind = 'rollout' AND purpose = 'validation'"
    assert len(rows(tmp_path, sql)) == 12 * (1 + report.updates)


@pytest.mark.parametrize("limit", [27, 42])
def test_calibrations_take_nothing_of_the_last_validation(limit: int) -> None:
    """Neither of a text that is due, nor of one whose update has too few rows."""
    judge = ScriptedLM(lambda request: "It is.", model="scripted/judge")

    def reference(gold: Any, pred: Any, _: str | None) -> Any:
        judge(f"Is {pred.answer} right? {gold.question}")
        return metric(gold, pred)

    calibration = Calibration(gepa_metric(reference), share=1.0)
    report = (
        World.made()
        .compile(
            budget=Budget(calls=limit),
            search=Search(keep="trunk", staleness=0),
            reflection_minibatch_size=4,
            train=48,
            validation_options=Validation(calibration=calibration),
        )
        .combee_report
    )
    assert report.best_score > report.seed_score


def test_rollouts_that_run_out_beside_a_limit_on_cost_cut_no_run_off(tmp_path: Path) -> None:
    def compiled(name: str, **limits: int) -> Any:
        return (
            World.made()
            .compile(
                budget=Budget(rollouts=46, **limits),
                search=Search(keep="trunk", staleness=0),
                reflection_minibatch_size=8,
                train=48,
                log_dir=tmp_path / name,
            )
            .combee_report
        )

    alone, beside = compiled("alone"), compiled("beside", tokens=10**9)
    assert beside.reason == alone.reason
    assert "rollouts left" in alone.reason
    assert beside.costs.total.calls == alone.costs.total.calls
    ended = "SELECT key FROM effect WHERE key LIKE 'decision/end/%'"
    assert not rows(tmp_path / "beside", ended), "a run that is cut off tests no line"


def test_rows_that_cannot_be_paid_for_while_a_kill_holds_room_end_no_run_for_good() -> None:
    held = Lost(is_rollout=True, most={"calls": 50.0}, until=time.time() + 600)
    usage = [CallUsage("task", "scripted/task", calls=1)]
    purse = Purse(Limits(calls=60), [("rollout", usage)] * 8, [held])
    with pytest.raises(BudgetReached, match="held until"):
        purse.rows_paid(8, 3)
    assert purse.postponed


def test_recorded_rows_bring_down_what_a_row_costs() -> None:
    usage = [CallUsage("task", "scripted/task", calls=1)]
    bought = [("rollout", usage)] * 8 + [("reflect/train", usage)] * 24
    purse = Purse(Limits(calls=100), bought)
    assert purse.rows_paid(100, 3) == (100 - 32) // 4
    purse.recorded = 24
    assert purse.rows_paid(100, 3) == (100 - 32) // 2, "at least as much again as its rollout"


def test_rows_are_paid_for_where_the_last_of_them_may_cost_the_most() -> None:
    used = [CallUsage("task", "m", 1, 0, 0, 1_000, 0, 0.0, None, 0.1)]
    largest = LargestCall(np.array([0, 4_000, 0, 0]), np.array([0, 6_300, 0, 0]))

    async def sent(room: int) -> int:
        purse = Purse(Limits(tokens=4_000 + room), [("rollout", used)] * 4)
        await purse.reserve_cost("rollout", largest)
        purse.settle("rollout", None)
        planned = purse.rows_paid(8, 3)
        for _ in range(planned):
            await purse.reserve_cost("rollout", largest)
            purse.book(used)
            purse.settle("rollout", used, largest)
        return planned

    with pytest.raises(BudgetReached, match="not enough for another update"):
        asyncio.run(sent(10_000))
    assert asyncio.run(sent(11_500)) == 4


def test_what_is_left_pays_for_rollouts_as_dear_as_the_dearest() -> None:
    def cost(tokens: int) -> list[CallUsage]:
        return [CallUsage("task", "m", 1, 0, 0, tokens, 0, 0.0, None, 0.1)]

    largest = LargestCall(np.array([0, 1_000, 0, 0]), np.array([0, 800, 0, 0]))

    async def sent(room: int) -> int:
        ended = [("rollout", cost(100))] * 9 + [("rollout", cost(400))]
        purse = Purse(Limits(tokens=1_300 + room), ended)
        await purse.reserve_cost("rollout", largest)
        purse.settle("rollout", None)
        paid = purse.rollouts_paid(9)
        for _ in range(paid):  # the last text is the longest
            await purse.reserve_cost("rollout", largest)
            purse.book(cost(400))
            purse.settle("rollout", cost(400))
        return paid

    assert [asyncio.run(sent(room)) for room in (1_300, 1_700, 2_500, 9_000)] == [1, 2, 4, 9]
    purse = Purse(Limits(calls=100), [("rollout", cost(1))] * 4)
    assert purse.rollouts_paid(1_000) == 96
    assert Purse(Limits(seconds=1.0), seconds=2.0).rollouts_paid(9) == 0
    assert Purse(Limits(rollouts=9)).rollouts_paid(9) == 9, "no limit on cost"


def test_what_is_kept_back_is_for_validations_alone() -> None:
    usage = [CallUsage("task", "scripted/task", calls=1)]
    purse = Purse(Limits(calls=20), [*[("rollout", usage)] * 10, ("feedback/feedback", ())])
    purse.keep_validation(8)

    async def bought(*, is_due: bool) -> int:
        count = 0
        with pytest.raises(BudgetReached):
            while True:
                await purse.reserve_cost("rollout", is_due=is_due)
                purse.book(usage)
                purse.settle("rollout", usage)
                count += 1
        return count

    async def run() -> list[int]:
        return [await bought(is_due=False), await bought(is_due=True)]

    assert asyncio.run(run()) == [2, 8]
    # What costs nothing passes no limit, though nothing is left.
    assert asyncio.run(purse.reserve_cost("feedback/feedback")) == {"calls": 0}


def test_calls_are_cut_neither_late_nor_while_a_kill_holds_room() -> None:
    usage = [CallUsage("task", "scripted/task", calls=1)]
    assert Purse(Limits(calls=20), [("rollout", usage)] * 20).can_cut
    assert not Purse(Limits(calls=20, seconds=1e-6)).can_cut, "nothing is validated any more"
    lost = Lost(is_rollout=True, most={"calls": 50.0}, until=time.time() + 600)
    held = Purse(Limits(calls=60), [("rollout", usage)] * 11, [lost])
    with pytest.raises(BudgetReached):
        asyncio.run(held.reserve_cost("rollout"))
    assert not held.can_cut, "the run goes on once that is free"


def test_a_replay_waits_where_the_run_did(tmp_path: Path) -> None:
    def sizes(name: str, **search: Any) -> list[int]:
        World.made().compile(
            budget=Budget(tokens=16_000) if name == "run" else Budget(updates=updates),
            search=Search(**search),
            log_dir=tmp_path / name,
            train=36,
        )
        return [event["size"] for event in events(tmp_path / name, "batch")]

    def waits(name: str) -> list[dict[str, Any]]:
        short = "SELECT key FROM effect WHERE key LIKE 'decision/short/%' AND value LIKE '%true%'"
        return rows(tmp_path / name, f"{short} AND step < {updates}")

    updates = 0
    recorded = sizes("run")
    updates = len(recorded)
    assert waits("run")
    assert sizes("again", replay=str(tmp_path / "run")) == recorded
    assert waits("again") == waits("run")


@pytest.mark.parametrize("keep", ["pareto", "trunk"])
@pytest.mark.parametrize("name", ["tokens", "dollars"])
@pytest.mark.parametrize("share", slow_but((0.3,), [0.3, 1.5]))
def test_no_limit_is_passed_by_more_than_one_effect_however_many_workers(
    tmp_path: Path, share: float, name: str, keep: Any
) -> None:
    """What the first effects cost is not known when they are sent, and slow ones would be sent all
    at once.
    """

    def slow(request: Any) -> str:
        time.sleep(0.003)
        return task_answer(request)

    prices = Costs(prices={"scripted/task": Price(1.0, 1.0), "scripted/proposer": Price(1.0, 1.0)})
    sums = {"tokens": "prompt_tokens + completion_tokens", "dollars": "dollars"}
    sql = (
        f"SELECT e.kind, sum({sums[name]}) AS cost"  # noqa: S608 - of two names
        " FROM usage u JOIN effect e ON e.id = u.effect GROUP BY e.id"
    )
    arguments: dict[str, Any] = {
        "costs": prices,
        "reflection_minibatch_size": 24,
        "train": 48,
        "num_threads": 64,
    }
    whole = World.made(slow)
    whole.compile(budget=Budget(updates=1), log_dir=tmp_path / "whole", **arguments)
    limit = share * sum(row["cost"] for row in rows(tmp_path / "whole", sql))
    world, place = World.made(slow), tmp_path / "limited"
    budget = Budget(**{name: int(limit) if name == "tokens" else limit})
    with contextlib.suppress(
        ArgumentValueError
    ):  # a small one ends in the middle of the student's validation
        world.compile(
            budget=budget, log_dir=place, search=Search(keep=keep, staleness=1), **arguments
        )
    costs = [row["cost"] for row in rows(place, sql)]
    assert 0.5 * limit < sum(costs) <= limit + max(costs)


PADDED = 250


@pytest.mark.parametrize("keep", ["pareto", "trunk"])
@pytest.mark.parametrize("limit", [27, 40, 61])
def test_sixteen_workers_pass_no_limit_in_calls_where_a_rollout_makes_several(
    keep: Any, limit: int
) -> None:
    def slow(request: Any) -> str:
        time.sleep(0.005)
        return task_answer(request)

    world = World.made(slow)
    with contextlib.suppress(ArgumentValueError):  # the student's validation alone takes 24
        world.compile(
            TwoSteps(),
            budget=Budget(calls=limit),
            num_threads=16,
            search=Search(keep=keep, staleness=1),
            train=48,
            reflection_minibatch_size=24,
            skip_perfect_score=False,
        )
    assert 0.5 * limit < world.asked <= limit


@pytest.mark.parametrize("name", ["tokens", "dollars"])
@pytest.mark.parametrize("limit", [10_000, 15_000])
def test_sixteen_workers_pass_no_limit_though_answers_grow_as_long_as_the_lm_allows(
    name: str, limit: int
) -> None:
    """From some moment on every answer is many times longer than any before."""

    def growing(request: Any) -> str:
        time.sleep(0.005)
        long = "" if len(world.task_lm.requests) <= 24 else " so" * PADDED
        return in_kind(request, {"reasoning": "because" + long, "answer": "unknown"})

    lms = (
        ScriptedLM(growing, model="scripted/task", temperature=0.0, max_tokens=PADDED + 20),
        ScriptedLM(proposer_answer, model="scripted/proposer", temperature=0.0, max_tokens=600),
    )
    world = World(*lms)
    prices = Costs(prices={"scripted/task": Price(1.0, 1.0), "scripted/proposer": Price(1.0, 1.0)})
    report = world.compile(
        dspy.ChainOfThought("question -> answer"),
        costs=prices,
        num_threads=16,
        train=48,
        budget=Budget(tokens=limit) if name == "tokens" else Budget(dollars=limit / 1e6),
        reflection_minibatch_size=24,
        skip_perfect_score=False,
    ).combee_report
    assert name in report.reason
    assert 0.5 * limit < report.costs.total.tokens <= limit


@pytest.mark.parametrize("name", slow_but(("tokens",), ["calls", "tokens", "dollars"]))
def test_a_run_that_was_killed_knows_what_its_effects_cost(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_patient, "pause_after", lambda retry_after, count: 0.0)

    def dying(request: Any) -> str:
        if alive and len(world.task_lm.requests) > 50:
            raise LMServerError("killed", status=503)
        return task_answer(request)

    prices = Costs(prices={"scripted/task": Price(1.0, 1.0), "scripted/proposer": Price(1.0, 1.0)})
    arguments: dict[str, Any] = {
        "costs": prices,
        "log_dir": tmp_path,
        "train": 48,
        "reflection_minibatch_size": 12,
        "num_threads": 16,
        "skip_perfect_score": False,
        "search": Search(patience=0.1),
    }
    alive, world = True, World.made(dying, num_retries=0)
    with pytest.raises(InfrastructureError, match="killed"):
        world.compile(TwoSteps(), budget=Budget(updates=9), **arguments)
    (spent,) = rows(
        tmp_path,
        "SELECT sum(calls) AS calls, sum(prompt_tokens + completion_tokens) AS tokens, sum(dollars)"
        " AS dollars FROM usage",
    )
    # What is left pays for less than any effect so far has cost: a rollout makes two calls of more
    # than ten words.
    left = {"calls": 1, "tokens": 20, "dollars": 2e-5}[name]
    alive, asked = False, world.asked
    with contextlib.suppress(ArgumentValueError):
        world.compile(TwoSteps(), budget=Budget(**{name: spent[name] + left}), **arguments)
    # Nor for a first comparison of lessons, which is granted what the dearest of any kind has cost.
    assert world.asked == asked


@pytest.mark.parametrize("name", ["tokens", "dollars", "gpu_seconds"])
def test_the_first_of_a_kind_tells_how_many_may_be_in_flight(name: str) -> None:
    cost = CallUsage("task", "m", 1, 0, 0, 4, 0, 4.0, 4.0, 0.1)

    async def granted(purse: Purse, kind: str, wanted: int) -> int:
        waiting = [asyncio.ensure_future(purse.reserve_cost(kind)) for _ in range(wanted)]
        done, late = await asyncio.wait(waiting, timeout=0.01)
        for task in late:
            task.cancel()
        return sum(task.exception() is None for task in done)

    def end(purse: Purse, kind: str, usage: Sequence[CallUsage]) -> None:
        purse.book(usage)
        purse.settle(kind, usage)

    async def run() -> None:
        purse = Purse(Limits(**{name: 20}))
        assert await granted(purse, "rollout", 8) == 1
        end(purse, "rollout", [cost])
        for flying in (2, 1, 1, 0):
            assert await granted(purse, "rollout", 8) == flying
            for _ in range(flying):
                end(purse, "rollout", [cost])
        # A server of one's own costs nothing: what is known to be free does not wait.
        nothing = replace(cost, prompt_tokens=0, dollars=0.0, gpu_seconds=0.0)
        own = Purse(Limits(**{name: 20}))
        assert await granted(own, "rollout", 8) == 1
        end(own, "rollout", [nothing])
        assert await granted(own, "rollout", 8) == 8
        # A metric that calls no LM costs nothing, and is soon asked as often as there are slots.
        free = Purse(Limits(**{name: 20}))
        for flying in (1, 2, 4):
            assert await granted(free, "feedback", 8) == flying
            for _ in range(flying):
                end(free, "feedback", ())

    asyncio.run(run())


@pytest.mark.parametrize("calls", slow_but((75,), [60, 75, 90, 105]))
@pytest.mark.parametrize("heldout", slow_but((True,), [False, True]))
def test_a_run_that_a_limit_cut_off_ends_as_it_did_when_it_is_compiled_again(
    tmp_path: Path, heldout: bool, calls: int
) -> None:
    """What is left of a budget in rollouts must not be another when the update that was cut off is
    not begun.
    """
    answers = []
    for _ in range(2):
        world = World.made(temperature=1.0)
        with dspy.context(lm=world.task_lm, adapter=dspy.ChatAdapter()):
            program = world.combee(
                budget=Budget(rollouts=140, calls=calls),
                log_dir=tmp_path,
                reflection_minibatch_size=8,
            ).compile(
                dspy.Predict("question -> answer"),
                trainset=examples(60),
                valset=examples(12, 100),
                heldout=examples(8, 200) if heldout else None,
            )
        answers.append((program.combee_report.best_score, program.signature.instructions))
    assert answers[0] == answers[1]
    assert not world.asked


@pytest.mark.parametrize("keep", slow_but(("trunk",), ["pareto", "trunk"]))
def test_what_waits_for_a_slot_when_the_time_is_over_is_not_sent(tmp_path: Path, keep: Any) -> None:
    """All of a minibatch is granted when it begins, however long it lasts with one slot."""

    def slow(request: Any) -> str:
        number = int(re.findall(r"Number (\d+)", request.last)[-1])
        if number < 80:  # none of the valset
            seen.add(number)
        if len(seen) <= 40:
            return task_answer(request)
        time.sleep(0.4)
        # Where all is right nobody asks for feedback, which would not be granted any more.
        return in_kind(request, {"answer": code_word(animal_of(request.last))})

    seen: set[int] = set()
    arguments: dict[str, Any] = {
        "train": 80,
        "num_threads": 1,
        "log_dir": tmp_path,
        "search": Search(keep=keep),
        "reflection_minibatch_size": 40,
        "budget": Budget(seconds=6.0),
    }
    report = World.made(slow).compile(**arguments).combee_report
    assert re.fullmatch(r"\d+(\.\d)? of 6 seconds have passed", report.reason)
    updates = report.updates  # how many is the machine's affair
    assert report.seed_score == pytest.approx(2 / 12)  # the student's validation goes first
    assert len(seen) < 40 + 20
    # Where it was cut off is a decision: whoever resumes it, or takes it again elsewhere, ends
    # there at any speed.
    (ended,) = rows(tmp_path, "SELECT step FROM effect WHERE key LIKE 'decision/end/%'")
    assert ended["step"] == updates
    world = World.made()
    again = world.compile(**arguments).combee_report
    assert (again.reason, again.updates, again.texts, world.asked) == (
        report.reason,
        updates,
        report.texts,
        0,
    )
    arguments |= {
        "log_dir": tmp_path / "again",
        "search": Search(keep=keep, replay=str(tmp_path)),
        "num_threads": 8,
    }
    replayed = world.compile(**arguments).combee_report
    assert (replayed.reason, replayed.updates, replayed.texts) == (
        report.reason,
        updates,
        report.texts,
    )


def test_updates_and_epochs_are_exact(world: World, tmp_path: Path) -> None:
    report = world.compile(budget=Budget(updates=2), reflection_minibatch_size=4).combee_report
    assert (report.updates, report.reason) == (2, "2 updates are done")
    report = world.compile(
        budget=Budget(epochs=1.5),
        reflection_minibatch_size=7,
        log_dir=tmp_path,
        skip_perfect_score=False,
    ).combee_report
    assert report.reason == "1.5 epochs are done"
    assert [event["rows"] for event in events(tmp_path, "update")] == [7, 7, 7, 3, 7, 5]


def test_a_minibatch_is_cut_to_what_the_budget_leaves(world: World, tmp_path: Path) -> None:
    report = world.compile(
        max_metric_calls=12 + 8 + 8 + 12 + 20,
        reflection_minibatch_size=8,
        log_dir=tmp_path,
        skip_perfect_score=False,
        search=Search(keep="pareto"),
    ).combee_report
    assert [event["size"] for event in events(tmp_path, "batch")] == [8, 4]
    assert report.reason == "0 rollouts left: not enough for another update"


@pytest.mark.parametrize("staleness", [0, 2])
@pytest.mark.parametrize(("keep", "limit"), [("pareto", 55), ("trunk", 46), ("trunk", 73)])
def test_no_minibatch_is_cut_to_one_or_two_rows(
    world: World, tmp_path: Path, keep: Any, staleness: int, limit: int
) -> None:
    report = world.compile(
        max_metric_calls=limit,
        reflection_minibatch_size=8,
        log_dir=tmp_path,
        skip_perfect_score=False,
        search=Search(keep=keep, staleness=staleness),
    ).combee_report
    sizes = [event["size"] for event in events(tmp_path, "batch")]
    assert sizes
    assert min(sizes) > 2
    assert report.rollouts <= limit
    assert "not enough for another update" in report.reason


def test_a_resumed_run_has_one_budget(world: World, tmp_path: Path) -> None:
    first = world.compile(
        budget=Budget(calls=40), log_dir=tmp_path, reflection_minibatch_size=4
    ).combee_report
    asked = world.asked
    again = world.compile(
        budget=Budget(calls=40), log_dir=tmp_path, reflection_minibatch_size=4
    ).combee_report
    assert world.asked == asked
    assert (again.reason, again.texts, again.best_score) == (
        first.reason,
        first.texts,
        first.best_score,
    )
    more = world.compile(
        budget=Budget(calls=90), log_dir=tmp_path, reflection_minibatch_size=4
    ).combee_report
    assert 40 < world.asked <= 90
    assert more.costs.total.calls == world.asked
    assert more.updates > first.updates


def test_a_target_and_patience_stop_where_they_say(world: World) -> None:
    rules = {
        "the target is reached": Target(0.5),
        "patience is over": Patience(updates=2),
    }
    for reason, rule in rules.items():
        report = world.compile(
            budget=rule | Budget(updates=50), reflection_minibatch_size=6, skip_perfect_score=False
        ).combee_report
        assert report.reason.startswith(reason)


class Seen(StoppingRule):
    """Keeps what it is shown."""

    name = "seen"

    def __init__(self, stop: int = 4) -> None:
        self.stop = stop
        self.views: list[Any] = []

    def check(self, view: Any) -> str | None:
        self.views.append(view)
        return "enough" if view.updates >= self.stop else None


def test_a_rule_sees_what_is_known_for_sure(world: World) -> None:
    rule = Seen()
    world.compile(
        budget=rule,
        reflection_minibatch_size=4,
        skip_perfect_score=False,
        search=Search(staleness=1),
    )
    assert [view.updates for view in rule.views] == [0, 1, 2, 3, 4]
    assert [
        max((step for step, _ in view.validation_history), default=None) for view in rule.views[:2]
    ] == [None, None]
    assert all(
        step <= view.updates - 2 for view in rule.views for step, _ in view.validation_history
    )
    assert rule.views[-1].rollouts > 12
    assert rule.views[-1].calls > rule.views[-1].rollouts - 24


def test_what_a_kind_has_cost_where_it_failed_is_known_to_who_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An effect that came to nothing is in the books of the next part. What it sent again asked for
    itself, so the next one is granted a call and no more.
    """
    monkeypatch.setattr(_patient, "pause_after", lambda retry_after, count: 0.001)

    def down(request: Any) -> str:
        raise LMServerError("HTTP 500", status=500)

    world = World.made(task=down, num_retries=0)
    with pytest.raises(InfrastructureError):
        world.compile(
            budget=Budget(calls=100),
            search=Search(patience=0.05),
            log_dir=tmp_path,
            num_threads=1,
            validation_options=Validation(probe=False),
        )
    failed = rows(
        tmp_path, "SELECT calls FROM usage u JOIN effect e ON e.id = u.effect WHERE kind = 'failed'"
    )
    assert len(failed) > 1, "each attempt"
    with Reader(tmp_path / "journal.sqlite") as reader:
        earlier = earlier_costs(reader, 1)
        assert lost_effects(reader, 1, 60.0) == []
    assert {kind for kind, _ in earlier} == {"rollout"}
    purse = Purse(Limits(calls=1000), earlier)
    assert purse.spent.calls == sum(row["calls"] for row in failed)
    assert asyncio.run(purse.reserve_cost("rollout")) == {"calls": 1}
    # Killed between two attempts it was in flight.
    with contextlib.closing(sqlite3.connect(tmp_path / "journal.sqlite")) as connection:
        connection.execute(
            "DELETE FROM effect WHERE kind = 'failed' AND value NOT LIKE '%goes_on%'"
        )
        connection.commit()
    with Reader(tmp_path / "journal.sqlite") as reader:
        assert lost_effects(reader, 1, 60.0)


def test_what_was_in_flight_when_a_run_was_killed_counts(tmp_path: Path, world: World) -> None:
    arguments = {"budget": Budget(calls=60), "log_dir": tmp_path, "reflection_minibatch_size": 4}
    world.compile(**arguments)
    with contextlib.closing(sqlite3.connect(tmp_path / "journal.sqlite")) as connection:
        connection.execute(
            "DELETE FROM usage WHERE effect = (SELECT max(id) FROM effect WHERE kind = 'rollout')"
        )
        last = (
            "DELETE FROM effect WHERE id = (SELECT max(id) FROM effect WHERE kind = 'rollout')"
            " RETURNING key"
        )
        (key,) = connection.execute(last).fetchone()
        connection.commit()
    with Reader(tmp_path / "journal.sqlite") as reader:
        lost = lost_effects(reader, 1, 60.0)
        (granted,) = rows(
            tmp_path, "SELECT data FROM event WHERE kind = 'granted' AND data LIKE ?", f'%"{key}"%'
        )
    assert [effect.most for effect in lost] == [{"calls": 1.0}]
    assert [effect.most for effect in lost] == [json.loads(granted["data"])["most"]]
    assert 0 < lost[0].until - time.time() <= 60
    purse = Purse(Limits(calls=60), lost=lost)
    assert purse.spent.calls == 1


def test_the_last_call_of_an_effect_may_have_been_sent_when_its_run_was_killed(
    tmp_path: Path, world: World
) -> None:
    arguments = {"budget": Budget(calls=60), "log_dir": tmp_path, "reflection_minibatch_size": 4}
    world.compile(**arguments)
    ((killed,),) = sqlite3.connect(tmp_path / "journal.sqlite").execute(
        "SELECT max((SELECT max(ended) FROM effect), (SELECT max(at) FROM event))"
    )
    world.compile(**{**arguments, "budget": Budget(calls=80)})
    with contextlib.closing(sqlite3.connect(tmp_path / "journal.sqlite")) as connection:
        connection.execute("DELETE FROM usage WHERE effect = (SELECT min(effect) FROM usage)")
        connection.execute(
            "DELETE FROM effect WHERE id = (SELECT min(id) FROM effect WHERE kind = 'rollout')"
        )
        connection.commit()

    with Reader(tmp_path / "journal.sqlite") as reader:
        (lost,) = lost_effects(reader, 1, 600.0)
    assert lost.until == killed + 600.0


@pytest.mark.parametrize(
    ("timeout", "ago", "held"),
    [(None, 0, True), (None, 1_300, False), (1_000, 1_300, True), (100, 300, True)],
)
def test_a_run_that_goes_on_holds_the_maximum_for_twice_the_timeout_of_its_lms(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    timeout: int | None,
    ago: int,
    held: bool,
) -> None:
    world, program = World.made(), dspy.Predict("question -> answer")
    program.set_lm(world.task_lm)  # it sets no timeout, so DSPy's own holds: 600 seconds
    promise, now = RunLog.promise, time.time

    async def promise_of_the_killed(log: RunLog, event: CostReserved) -> None:
        await promise(log, replace(event, effect="rollout/killed/at/0", most={"tokens": 900.0}))
        monkeypatch.setattr(RunLog, "promise", promise)

    def run(tokens: int) -> Any:
        own = dspy.LM("openai/unused", timeout=timeout)
        with dspy.context(lm=own, adapter=dspy.ChatAdapter()):
            return world.combee(
                budget=Budget(tokens=tokens),
                log_dir=str(tmp_path),
                validation=Validation(probe=False),
            ).compile(program, trainset=examples(12), valset=examples(6, 100))

    monkeypatch.setattr(RunLog, "promise", promise_of_the_killed)
    run(9_000)
    monkeypatch.setattr(time, "time", lambda: now() + ago)
    run(12_000)
    warnings = [event["text"] for event in events(tmp_path, "warning")]
    (doubt,) = [text for text in warnings if "in flight when the run was killed" in text]
    assert ("900 the maximum of what may still run" in doubt) == held


def test_what_is_held_after_a_kill_does_not_hang_on_a_slow_disk(
    tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    promise, transact, last_work = RunLog.promise, Writer._transact, _earlier._last_work
    lost: list[float] = []

    async def promise_of_the_killed(log: RunLog, event: CostReserved) -> None:
        await promise(log, replace(event, effect="rollout/killed/at/0"))
        monkeypatch.setattr(RunLog, "promise", promise)

    def slow(writer: Writer, connection: Any, statements: Any) -> None:
        if any(RunStarted.kind in parameters for _, parameters in statements):
            time.sleep(0.2)
        transact(writer, connection, statements)

    def last_work_after_a_while(*arguments: Any) -> float:
        time.sleep(0.5)
        lost.append(last_work(*arguments))
        return lost[-1]

    monkeypatch.setattr(RunLog, "promise", promise_of_the_killed)
    world.compile(budget=Budget(calls=30), log_dir=tmp_path)
    ended = time.time()
    monkeypatch.setattr(Writer, "_transact", slow)
    monkeypatch.setattr(_earlier, "_last_work", last_work_after_a_while)
    world.compile(budget=Budget(calls=40), log_dir=tmp_path)
    assert lost and lost[0] <= ended, "by the part that was killed, not by the one that follows"


def test_without_a_limit_that_can_be_held_nothing_begins(world: World) -> None:
    with pytest.raises(ArgumentValueError, match="the run would never stop"):
        world.compile(max_metric_calls=None)
    with pytest.raises(ArgumentValueError, match="cannot be given together"):
        Combee(metric, reflection_lm=world.proposer_lm, auto="light", max_metric_calls=5)
    with pytest.raises(ArgumentValueError, match="no price is known for 'scripted/task'"):
        world.compile(budget=Budget(dollars=1.0))
    assert not world.asked


@pytest.mark.parametrize(
    ("budget", "price"),
    [(Budget(tokens=9_000), 0), (Budget(dollars=1), 1)],
    ids=["tokens", "dollars"],
)
def test_a_limit_that_a_service_does_not_count_is_refused_at_once(
    budget: Budget, price: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("combee_dspy.costs._calls._tokens", lambda usage, *names: 0)
    world = World.made()
    prices = dict.fromkeys(("scripted/task", "scripted/proposer"), Price(price, price))
    with pytest.raises(ArgumentValueError, match="scripted/task reports no tokens"):
        world.compile(budget=budget, costs=Costs(prices=prices))
    assert world.asked < 8


def test_calls_can_be_limited_where_a_service_counts_no_tokens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("combee_dspy.costs._calls._tokens", lambda usage, *names: None)
    assert "calls are spent" in World.made().compile(budget=Budget(calls=30)).combee_report.reason


def test_what_a_cache_answers_counts_no_tokens_and_is_not_refused() -> None:
    world = World.made(cache=True)
    dspy.configure_cache(enable_disk_cache=False)  # what an earlier run of this test left there
    try:
        for _ in range(2):
            world.compile(budget=Budget(tokens=90_000, updates=1))
    finally:
        dspy.configure_cache()
    assert world.task_lm.requests


def test_dollars_can_be_limited_where_a_service_that_counts_no_tokens_costs_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("combee_dspy.costs._calls._tokens", lambda usage, *names: None)
    costs = Costs(prices={"scripted/task": Price(0, 0), "scripted/proposer": Price(0, 0)})
    report = (
        World.made()
        .compile(budget=Budget(dollars=1, updates=2), costs=costs, reflection_minibatch_size=8)
        .combee_report
    )
    assert report.costs.total.dollars == 0
    assert report.reason == "2 updates are done"
