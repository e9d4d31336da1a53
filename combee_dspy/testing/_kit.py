"""Which checks a strategy must pass, and how to run them with pytest."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from typing import Any

from combee_dspy.exceptions import ArgumentTypeError
from combee_dspy.strategies import Strategy
from combee_dspy.testing.checks import general

Check = Callable[[Any], None]
"""A named function that takes a strategy and raises ``ConformanceError`` where it does not conform."""

_MODULES = {
    "aggregator": "aggregators",
    "artifact": "artifacts",
    "benchmark": "benchmarks",
    "controller": "controllers",
    "embedder": "embedders",
    "executor": "executors",
    "operator": "operators",
    "stopping": "stopping",
    "tracker": "trackers",
}


def checks_for(strategy: Strategy | type[Strategy]) -> list[Check]:
    """Return the checks that a strategy must pass: the general ones, then those of its kind.

    Args:
        strategy: A strategy, or a class whose parameters all have defaults.

    Raises:
        ArgumentTypeError: It is no strategy, or a class that needs parameters.
    """
    module = _MODULES.get(_instance(strategy).kind)
    own = importlib.import_module(f"combee_dspy.testing.checks.{module}") if module else None
    return [*_checks_in(general), *(_checks_in(own) if own else ())]


def parametrize_checks(strategies: Iterable[Strategy | type[Strategy]]) -> Any:
    """Return a pytest mark that runs a test ``(strategy, check)`` for every check of every strategy.

    Args:
        strategies: Strategies, or classes whose parameters all have defaults.
            Give one per setting that is worth testing.

    Raises:
        ArgumentTypeError: One of them is no strategy, or a class that needs parameters.
    """
    import pytest

    built = [_instance(strategy) for strategy in strategies]
    return pytest.mark.parametrize(
        ("strategy", "check"),
        [
            pytest.param(strategy, check, id=f"{type(strategy).__name__}{number or ''}-{check.__name__}")
            for number, strategy in enumerate(built)
            for check in checks_for(strategy)
        ],
    )


def _checks_in(module: Any) -> list[Check]:
    return [found for name, found in vars(module).items() if name.startswith("check_")]


def _instance(strategy: object) -> Strategy:
    remedy = "Give an object, for example MyAggregator(size=3)."
    if isinstance(strategy, type) and issubclass(strategy, Strategy):
        try:
            return strategy()
        except TypeError as error:
            raise ArgumentTypeError("strategy", strategy, f"cannot be built: {error}", remedy) from error
    if not isinstance(strategy, Strategy):
        raise ArgumentTypeError("strategy", strategy, "is no subclass of a combee_dspy base class", remedy)
    return strategy
