"""Checks for stopping rules: what is known in, a reason or nothing out."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial
from typing import Any

from combee_dspy.costs import Counts, Totals
from combee_dspy.stopping import AnyOf, RunView, StoppingRule
from combee_dspy.streams import derive
from combee_dspy.testing.checks._expect import attempt, expect

__all__ = ["CHECKS"]


def _views() -> list[RunView]:
    edges = [
        RunView(),
        RunView(gpu_seconds=0.0),
        RunView(rollouts=10**9, seconds=1e9, iteration=10**6, gpu_seconds=1e9),
        RunView(rollouts=5, validation_scores=(0.0,), validation_history=((0, 0.0),)),
        RunView(rollouts=5, totals=Totals(total=Counts(calls=5, unpriced=5))),
        RunView(rollouts=10**9, iteration=10**6, epochs=1e6),
    ]
    return [*edges, *(_view(derive(0, "stopping-views", number)) for number in range(60))]


def _view(stream: random.Random) -> RunView:
    iteration = stream.randrange(30)
    at = sorted([0, *(stream.randint(1, max(1, iteration)) for _ in range(stream.randrange(6)))])
    scores = tuple(round(stream.random(), 3) for _ in at)
    tokens = stream.choice([0, 500, 10**7])
    totals = Totals(
        total=Counts(calls=stream.randrange(500), prompt_tokens=tokens, known_dollars=stream.choice([0.0, 0.5, 1e4]))
    )
    return RunView(
        rollouts=stream.choice([0, 7, 60, 10_000]),
        totals=totals,
        seconds=stream.choice([0.0, 3.5, 1e6]),
        iteration=iteration,
        validation_scores=scores,
        gpu_seconds=stream.choice([None, 0.0, 1e5]),
        validation_history=tuple(zip(at, scores, strict=True)),
    )


def _ask(strategy: StoppingRule, view: RunView) -> Any:
    return attempt(
        lambda: strategy.check(view),
        f"`check` returns for {view}",
        "any view that a run can meet needs an answer; what is None is not known",
    )


def check_answers_with_a_reason_or_none(strategy: StoppingRule) -> None:
    """True would stop without a reason, and False or an empty text would pass for one."""
    for view in _views():
        answer = _ask(strategy, view)
        expect(
            answer is None or (isinstance(answer, str) and answer.strip()),
            "a sentence that says why to stop, or None to go on",
            f"{answer!r} for {view}",
            "return a reason with the figures that led to it, or None",
        )


def check_is_a_pure_function_of_the_view(strategy: StoppingRule) -> None:
    """A resumed or replayed run must decide the same."""
    views = _views()
    first = [_ask(strategy, view) for view in views]
    # In reverse order and built anew: what it remembers, it would remember differently.
    other = type(strategy)(**strategy.params())
    second = [_ask(other, view) for view in reversed(views)][::-1]
    for view, one, two in zip(views, first, second, strict=True):
        expect(
            one == two,
            "the same answer for the same view",
            f"{one!r:.200} and then {two!r:.200} for {view}",
            "read the view only: no clock, no `random`, nothing kept on self between calls",
        )


def check_keeps_its_rollout_limit(strategy: StoppingRule) -> None:
    """Minibatches are clipped to the limit, so a run that goes on at it would buy nothing for ever."""
    limit = attempt(strategy.rollout_limit, "`rollout_limit` returns", "return a whole number, or None")
    if limit is None:
        return
    expect(
        isinstance(limit, int) and not isinstance(limit, bool) and limit >= 1,
        "a whole number of at least 1, or None",
        f"{limit!r}",
        "round up, and return None where there is no such number",
    )
    for view in _views():
        at = replace(view, rollouts=max(limit, view.rollouts))
        expect(
            _ask(strategy, at) is not None,
            f"a reason to stop at {limit} rollouts, whatever else the view says",
            f"None for {at}",
            "return a limit only where reaching it stops by itself",
        )


def check_keeps_its_epoch_limit(strategy: StoppingRule) -> None:
    """Nothing is begun beyond the limit, so a run that goes on at it would have nothing to begin."""
    limit = attempt(strategy.epoch_limit, "`epoch_limit` returns", "return a number, or None")
    if limit is None:
        return
    expect(
        isinstance(limit, (int, float)) and not isinstance(limit, bool) and limit > 0,
        "a number above 0, or None",
        f"{limit!r}",
        "return None where there is no such number",
    )
    for view in _views():
        at = replace(view, epochs=max(limit, view.epochs))
        expect(
            _ask(strategy, at) is not None,
            f"a reason to stop after {limit:g} epochs, whatever else the view says",
            f"None for {at}",
            "return a limit only where reaching it stops by itself",
        )


def check_stops_where_a_limit_on_cost_is_reached(strategy: StoppingRule) -> None:
    """Once a limit on cost is reached, finalists are not drawn again: a rule that goes on has not reached one."""
    for view in _views():
        answer = attempt(partial(strategy.cost_reached, view), "`cost_reached` returns", "return True or False")
        expect(
            answer is False or (answer is True and _ask(strategy, view) is not None),
            "False, or True where `check` returns a reason to stop",
            f"{answer!r} for {view}",
            "say True only where a limit in rollouts, calls, tokens, dollars, seconds or GPU-seconds is reached",
        )


def check_composes(strategy: StoppingRule) -> None:
    """``a | a`` and ``a & a`` stop when ``a`` does."""
    for view in _views():
        stops = _ask(strategy, view) is not None
        for composed in (AnyOf((strategy, strategy)), strategy & strategy):
            expect(
                (_ask(composed, view) is not None) == stops,
                "composed with itself a rule stops when it stops alone",
                f"{composed.check(view)!r} for {view}",
                "leave `__or__` and `__and__` to the base class",
            )


CHECKS = (
    check_answers_with_a_reason_or_none,
    check_is_a_pure_function_of_the_view,
    check_keeps_its_rollout_limit,
    check_keeps_its_epoch_limit,
    check_stops_where_a_limit_on_cost_is_reached,
    check_composes,
)
