"""Checks for stopping rules: what is known in, a reason or nothing out."""

from __future__ import annotations

import random
from dataclasses import fields, replace
from typing import Any

from combee_dspy.stopping import AnyOf, Limits, RunView, StoppingRule
from combee_dspy.streams import derive
from combee_dspy.testing._kit import attempt, expect, expect_pure


def _views() -> list[RunView]:
    edges = [
        RunView(),
        RunView(dollars=None, gpu_seconds=0.0),
        RunView(
            rollouts=10**9, calls=10**9, seconds=1e9, updates=10**6, gpu_seconds=1e9, epochs=1e6
        ),
        RunView(rollouts=5, validation_history=((-1, 0.0),)),
    ]
    return [*edges, *(_view(derive(0, "stopping-views", number)) for number in range(60))]


def _view(stream: random.Random) -> RunView:
    updates = stream.randrange(30)
    at = sorted([-1, *(stream.randrange(max(1, updates)) for _ in range(stream.randrange(6)))])
    return RunView(
        rollouts=stream.choice([0, 7, 60, 10_000]),
        calls=stream.randrange(500),
        tokens=stream.choice([0, 500, 10**7]),
        dollars=stream.choice([None, 0.0, 0.5, 1e4]),
        seconds=stream.choice([0.0, 3.5, 1e6]),
        gpu_seconds=stream.choice([None, 0.0, 1e5]),
        updates=updates,
        epochs=stream.choice([0.0, 0.5, 1.0, 20.0]),
        validation_history=tuple((update, round(stream.random(), 3)) for update in at),
    )


def _ask(strategy: StoppingRule, view: RunView) -> Any:
    mend = "any view that a run can meet needs an answer; what is None is not known"
    return attempt(lambda: strategy.check(view), f"`check` returns for {view}", mend)


def check_answers_with_a_reason_or_none(strategy: StoppingRule) -> None:
    """True would stop without a reason, and False or an empty text would pass for one."""
    for view in _views():
        answer = _ask(strategy, view)
        right = answer is None or (isinstance(answer, str) and answer.strip())
        expect(
            right, "a sentence that says why to stop, or None to go on", f"{answer!r} for {view}"
        )


def check_is_a_pure_function_of_the_view(strategy: StoppingRule) -> None:
    """A resumed or replayed run must decide the same."""
    expect_pure(strategy, _ask, _views())


def check_stops_at_its_limits(strategy: StoppingRule) -> None:
    """A rule stops at its limits, since nothing is granted beyond them."""
    limits: Limits = attempt(
        strategy.limits, "`limits` returns", "return Limits(), or leave the method as inherited"
    )
    expect(isinstance(limits, Limits), "a `combee_dspy.stopping.Limits`", f"{limits!r:.200}")
    for each in fields(Limits):
        limit = getattr(limits, each.name)
        if limit is None:
            continue
        expect(limit > 0, f"a limit of {each.name} above 0, or None", f"{limit!r}")
        for view in _views():
            at = replace(view, **{each.name: max(limit, getattr(view, each.name) or 0)})
            wanted = f"a reason to stop at {limit:g} {each.name}, whatever else the view says"
            mend = "name a limit only where reaching it stops by itself"
            expect(_ask(strategy, at) is not None, wanted, f"None for {at}", mend)


def check_composes(strategy: StoppingRule) -> None:
    """``a | a`` and ``a & a`` stop when ``a`` does."""
    for view in _views():
        stops = _ask(strategy, view) is not None
        for composed in (AnyOf((strategy, strategy)), strategy & strategy):
            same = (_ask(composed, view) is not None) == stops
            expect(
                same,
                "composed with itself a rule stops when it stops alone",
                f"another answer for {view}",
            )
