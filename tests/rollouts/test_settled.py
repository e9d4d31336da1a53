"""A metric's fingerprint is that of its code: what changes as it runs is no part of it."""

from __future__ import annotations

import functools
import itertools
import re
import threading
import types
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import dspy
import pytest

from combee_dspy.rollouts import fingerprint, fingerprints


def print_of(metric: object) -> str:
    return fingerprints(dspy.Predict("question -> answer"), metric)["metric"]


class Caching:
    """Has a cache, counters and a lock, and learns lazily who judges."""

    def __init__(self, weight: float = 1.0) -> None:
        self.weight = weight
        self.pattern = re.compile("a+")
        self.cache: dict[str, Any] = {}
        self.seen: set[str] = set()
        self.calls = 0
        self.last: str | None = None
        self.by_kind: Counter[str] = Counter()
        self.numbers = itertools.count()
        self.lock = threading.Lock()
        self.judge: Any = None

    def __call__(self, gold: Any, pred: Any, *rest: Any) -> float:
        self._count(gold.question)
        self.cache[gold.question] = ([pred], {"why": ("because", 1)})
        self.seen.add(gold.question)
        self.by_kind["any"] += 1
        next(self.numbers)
        self.lock.acquire(blocking=False)
        self.judge = self.judge or dspy.Predict("a -> b")
        return self.weight

    def _count(self, question: str) -> None:
        self.calls += 1
        self.last = question

    def score(self, gold: Any, pred: Any, *rest: Any) -> float:
        return self(gold, pred)


class Slotted:
    __slots__ = ("calls", "weight")

    def __init__(self, weight: float = 1.0) -> None:
        self.weight, self.calls = weight, 0

    def __call__(self, gold: Any, pred: Any, *rest: Any) -> float:
        self.calls += 1
        return self.weight


@dataclass
class Counted:
    weight: float = 1.0
    calls: int = 0
    rows: list[str] = field(default_factory=list)

    def __call__(self, gold: Any, pred: Any, *rest: Any) -> float:
        self.calls += 1
        self.rows.append(gold.question)
        return self.weight


def over_a_dict(weight: float = 1.0) -> Callable[..., float]:
    cache: dict[str, float] = {}
    calls = 0

    def score(gold: Any, pred: Any, *rest: Any) -> float:
        nonlocal calls
        calls += 1
        return cache.setdefault(gold.question, weight)

    return score


def remembering(cache: dict[str, float], weight: float, gold: Any, pred: Any, *rest: Any) -> float:
    return cache.setdefault(gold.question, weight)


def with_judges(weight: float = 1.0) -> Callable[..., float]:
    judges: dict[str, dspy.Predict] = {}

    def score(gold: Any, pred: Any, *rest: Any) -> float:
        kind = gold.question[:2]
        if kind not in judges:
            judges[kind] = dspy.Predict(f"question -> {kind}")
        return weight

    return score


def partly(weight: float = 1.0) -> Callable[..., float]:
    return functools.partial(remembering, {}, weight)


def by_default(weight: float = 1.0) -> Callable[..., float]:
    def score(gold: Any, pred: Any, *rest: Any, cache: dict[str, float] = {}) -> float:  # noqa: B006 - a cache
        return cache.setdefault(gold.question, weight)

    return score


def cached(weight: float = 1.0) -> Callable[..., float]:
    @functools.lru_cache
    def weigh(question: str) -> float:
        return weight

    def score(gold: Any, pred: Any, *rest: Any) -> float:
        return weigh(gold.question)

    return score


MAKERS = (
    Caching,
    lambda weight=1.0: Caching(weight).score,
    Slotted,
    Counted,
    over_a_dict,
    with_judges,
    partly,
    by_default,
    cached,
)


@pytest.mark.parametrize("make", MAKERS)
def test_state_does_not_count_and_settings_do(make: Callable[..., Any]) -> None:
    metric = make()
    before = print_of(metric)
    for number in range(3):
        example = dspy.Example(question=f"q{number}").with_inputs("question")
        assert metric(example, dspy.Prediction(answer="a")) == 1.0

    assert print_of(metric) == before == print_of(make()) != print_of(make(2.0))


def test_the_fingerprint_of_a_cached_rollout_has_the_state_too() -> None:
    metric, program = over_a_dict(), dspy.Predict("a -> b")
    before = fingerprint(program, metric)
    metric(dspy.Example(question="q"), None)
    assert fingerprint(program, metric) != before


CELL = """
import dspy
calls = 0
seen = {}
WEIGHT = 1.0
STEPS = {"strip": lambda text: text.strip()}
judge = dspy.Predict("question -> verdict")
def normal(text):
    return STEPS["strip"](text).lower()
def metric(gold, pred, trace=None, pred_name=None, pred_trace=None):
    global calls
    calls += 1
    seen[gold.question] = type(judge), pred
    return WEIGHT * (normal(pred.answer) == normal(gold.answer))
"""


def cell(
    source: str, *, number: int = 1, lines: int = 0, module: str = "__main__"
) -> types.ModuleType:
    """Run the source as a notebook runs a cell."""
    namespace = types.ModuleType(module)
    if not module:
        del namespace.__name__
    code = compile("\n" * lines + source, f"<ipython-input-{number}>", "exec")
    exec(code, vars(namespace))  # noqa: S102 - a cell
    return namespace


@pytest.mark.parametrize("module", ["__main__", ""])
def test_a_cell_that_is_run_again_has_the_same_metric(module: str) -> None:
    first = cell(CELL, module=module)
    before = print_of(first.metric)
    first.metric(dspy.Example(question="q", answer="a"), dspy.Prediction(answer="A"))
    # Variables of other cells that share a name with an attribute.
    first.answer, first.question = "some text", 7
    again = cell(CELL, number=12, lines=30, module=module)

    assert print_of(first.metric) == print_of(again.metric) == before


@pytest.mark.parametrize("module", ["__main__", ""])
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("WEIGHT = 1.0", "WEIGHT = 2.0"),
        (".lower()", ".upper()"),
        ("text.strip()", "text.rstrip()"),
        ("question -> verdict", "question -> doubt"),
        ("calls += 1", "calls += 2"),
    ],
)
def test_a_cell_with_other_code_has_another_metric(module: str, old: str, new: str) -> None:
    changed = CELL.replace(old, new)

    assert print_of(cell(changed, module=module).metric) != print_of(
        cell(CELL, module=module).metric
    )


class Judging(dspy.Module):
    def __init__(self, model: str = "openai/a", demos: int = 0) -> None:
        super().__init__()
        self.judges = [dspy.ChainOfThought("question -> verdict")]
        self.judges[0].predict.demos = [
            dspy.Example(question=str(n), verdict="yes") for n in range(demos)
        ]
        self.lm = dspy.LM(model)
        self.verdicts: dict[str, str] = {}

    def forward(self, gold: Any, pred: Any, *rest: Any) -> float:
        self.verdicts[gold.question] = "yes"
        return 1.0


def test_a_judge_counts_with_its_model_and_demonstrations_and_without_its_verdicts() -> None:
    judge = Judging()
    before = print_of(judge)
    judge(dspy.Example(question="q"), None)

    assert print_of(judge) == before == print_of(Judging())
    assert len({before, print_of(Judging("openai/b")), print_of(Judging(demos=1))}) == 3
