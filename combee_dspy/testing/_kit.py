"""How a check reports, which checks a strategy must pass, and pytest's way to run them."""

from __future__ import annotations

import asyncio
import copy
import importlib
import inspect
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, overload

from combee_dspy.exceptions import ArgumentTypeError
from combee_dspy.registry import KINDS
from combee_dspy.strategies import Strategy

if TYPE_CHECKING:
    import pytest

T = TypeVar("T")

Check = Callable[[Any], None]
"""A named function that takes a strategy and raises ``ConformanceError`` where it does not
conform.
"""


class ConformanceError(AssertionError):
    """A strategy does not keep its kind's contract.

    Args:
        expected: What the contract says.
        happened: What the strategy did.
        mend: How to put it right.
    """

    def __init__(self, expected: str, happened: str, mend: str = "") -> None:
        self.expected = expected
        self.happened = happened
        self.mend = mend
        super().__init__(
            f"\nexpected: {expected}\nhappened: {happened}\nto mend:  {mend or 'see the contract'}"
        )


def expect(holds: object, expected: str, happened: str, mend: str = "") -> None:
    """Raise unless a condition holds.

    Raises:
        ConformanceError: It does not.
    """
    if not holds:
        raise ConformanceError(expected, happened, mend)


@overload
def attempt(
    action: Callable[[], Coroutine[object, object, T]], expected: str, mend: str = ""
) -> T: ...
@overload
def attempt(action: Callable[[], T], expected: str, mend: str = "") -> T: ...
def attempt(action: Callable[[], object], expected: str, mend: str = "") -> object:
    """Return what an action returns; a coroutine is run.

    Raises:
        ConformanceError: It raises anything.
    """
    try:
        result = action()
        return asyncio.run(result) if inspect.iscoroutine(result) else result
    except Exception as error:
        raise ConformanceError(
            expected, f"it raised {type(error).__name__}: {error}", mend
        ) from error


def expect_pure(strategy: Any, ask: Callable[[Any, Any], Any], views: Sequence[Any]) -> None:
    """Raise unless a strategy and a copy of it, asked in reverse order, answer each view alike.

    Raises:
        ConformanceError: They do not: what one remembers, the other would remember differently.
    """
    first = [ask(strategy, view) for view in views]
    other = copy.deepcopy(strategy)
    second = [ask(other, view) for view in reversed(views)][::-1]
    mend = "read the view only: no clock, no `random`, nothing kept on self between calls"
    for view, answer, repeated in zip(views, first, second, strict=True):
        expect(
            answer == repeated,
            "the same answer for the same view",
            f"{answer!r:.200} and {repeated!r:.200} for {view}",
            mend,
        )


def expect_same_at_once(uses: Mapping[str, Callable[[], Coroutine[Any, Any, Any]]]) -> None:
    """Raise unless uses of one object return the same at once as one after another.

    Raises:
        ConformanceError: They do not, or one of them raises.
    """

    async def use_at_once() -> list[Any]:
        return await asyncio.gather(*(use() for use in uses.values()))

    alone = [attempt(use, f"a result, given {case}") for case, use in uses.items()]
    at_once = attempt(use_at_once, "results of several uses at once")
    different = [
        case for case, *both in zip(uses, alone, at_once, strict=True) if both[0] != both[1]
    ]
    mend = (
        "keep nothing on self or in the module; draw from `context.stream(…)` only; no clock, no"
        " order of sets"
    )
    expect(
        not different,
        "the same results for the same inputs, one after another and at once",
        f"different ones, given {different}",
        mend,
    )


def checks_for(strategy: Strategy | type[Strategy]) -> list[Check]:
    """Return the checks that a strategy must pass: the general ones, then those of its kind.

    Args:
        strategy: A strategy, or a class whose parameters all have defaults.

    Raises:
        ArgumentTypeError: It is no strategy, or a class that needs parameters.
    """
    kind = _instance(strategy).kind
    # A distribution may have kinds of its own.
    modules = ["general", kind] if kind in KINDS else ["general"]
    namespaces = [
        vars(importlib.import_module(f"combee_dspy.testing.checks.{module}")) for module in modules
    ]
    return [
        check for names in namespaces for name, check in names.items() if name.startswith("check_")
    ]


def parametrize_checks(
    strategies: Iterable[Strategy | type[Strategy]],
) -> pytest.MarkDecorator:
    """Return a pytest mark that runs every check of every strategy.

    The test takes ``(strategy, check)``.

    Args:
        strategies: As for :func:`checks_for`. Give one per setting that is worth testing.

    Raises:
        ArgumentTypeError: One of them is no strategy, or a class that needs parameters.
    """
    import pytest

    built = [_instance(strategy) for strategy in strategies]
    return pytest.mark.parametrize(
        ("strategy", "check"),
        [
            pytest.param(
                strategy, check, id=f"{type(strategy).__name__}{number or ''}-{check.__name__}"
            )
            for number, strategy in enumerate(built)
            for check in checks_for(strategy)
        ],
    )


def _instance(strategy: object) -> Strategy:
    remedy = "Give an object, for example MyAggregator(size=3)."
    if isinstance(strategy, type) and issubclass(strategy, Strategy):
        try:
            return strategy()
        except TypeError as error:
            raise ArgumentTypeError(
                "strategy", strategy, f"cannot be built: {error}", remedy
            ) from error
    if not isinstance(strategy, Strategy):
        raise ArgumentTypeError(
            "strategy", strategy, "is no subclass of a combee_dspy base class", remedy
        )
    return strategy
