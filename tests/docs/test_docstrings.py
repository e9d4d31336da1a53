"""Examples in docstrings run as they stand, and every built-in strategy has one."""

from __future__ import annotations

import doctest
import importlib
import inspect

import pytest

from combee_dspy import registry
from combee_dspy.registry import Spec
from combee_dspy.strategies import Strategy

ROOMS = (
    "aggregators",
    "artifacts",
    "controllers",
    "diversity",
    "guards",
    "lessons",
    "memory",
    "operators",
    "stopping",
    "testing",
    "traces",
    "weighers",
)
KINDS = (
    "aggregator",
    "artifact",
    "controller",
    "embedder",
    "operator",
    "retriever",
    "stopping",
    "weigher",
)


def public_classes() -> list[type]:
    classes = [Spec]
    for room in ROOMS:
        module = importlib.import_module(f"combee_dspy.{room}")
        classes += filter(inspect.isclass, (getattr(module, name) for name in module.__all__))
    return classes


WITH_EXAMPLE = [cls for cls in public_classes() if ">>> " in (cls.__doc__ or "")]
BUILT_IN = [
    registry.find(entry.kind, entry.name)
    for entry in registry.installed()
    if entry.kind in KINDS and entry.distribution == registry.DISTRIBUTION
]


@pytest.mark.parametrize("cls", WITH_EXAMPLE, ids=lambda cls: cls.__name__)
def test_an_example_runs_as_it_stands(cls: type) -> None:
    example = doctest.DocTestParser().get_doctest(cls.__doc__ or "", {}, cls.__name__, None, 0)
    assert example.examples
    report: list[str] = []
    failed, _ = doctest.DocTestRunner(verbose=False).run(example, out=report.append)
    assert not failed, "".join(report)


@pytest.mark.parametrize("cls", BUILT_IN, ids=lambda cls: cls.__name__)
def test_a_strategy_shows_how_it_is_used(cls: type[Strategy]) -> None:
    assert cls in WITH_EXAMPLE
