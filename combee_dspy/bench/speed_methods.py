"""The methods that are timed beside each other, each by the defaults of its own constructor."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import dspy
from gepa.strategies.proposal_sampling import PxNSampling

from combee_dspy import registry
from combee_dspy.combee import Combee
from combee_dspy.controllers import BatchController, BatchView
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.records import BatchDecision
from combee_dspy.stopping import Budget

__all__ = ["DEFAULT_METHODS", "METHODS", "Method", "OneEpoch", "Pinned", "Terms", "lacking", "picked_size"]

# Far beyond what an epoch needs: the epoch ends the run, never this.
_NO_LIMIT = 1_000_000
_NAIVE = 40
_UPDATES = 3
"""Fewest updates an epoch at the size that the controller picked."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What every method is given: where to end and with what, and nothing that is a choice.

    Attributes:
        metric: The benchmark's metric.
        examples: Training examples, which make one epoch.
        threads: Threads of the method: the slots of the service.
        seed: Seed of the method.
        stop: Ends the run after one epoch.
        lm: Writes.
        picked: The size that the controller picked, for the methods that follow it.
        sizes: Sizes to repeat instead of planning, for methods that plan; empty to let them plan.
    """

    metric: Any
    examples: int
    threads: int
    seed: int
    stop: OneEpoch
    lm: dspy.LM
    picked: int | None = None
    sizes: tuple[int, ...] = ()

    def arguments(self, **gepa_kwargs: Any) -> dict[str, Any]:
        """Return the arguments that all constructors share."""
        return {
            "max_metric_calls": _NO_LIMIT,
            "reflection_lm": self.lm,
            "num_threads": self.threads,
            "seed": self.seed,
            "track_stats": True,
            "gepa_kwargs": {"stop_callbacks": [self.stop], **gepa_kwargs},
        }


@dataclass(frozen=True, slots=True)
class Method:
    """One method.

    Attributes:
        said: What it is, in a few words.
        make: Makes the optimizer.
        plans: Whether it plans its sizes from delays, so that they depend on time.
        follows: The method whose picked size it takes; empty for none.
        argument: The argument of ``Combee`` that it needs, where a version may lack it.
        operator: The operator that it needs, where it may not be installed.
        peer: Whether it is ``dspy.GEPA``.
    """

    said: str
    make: Callable[[Terms], Any]
    plans: bool = False
    follows: str = ""
    argument: str = ""
    operator: str = ""
    peer: bool = False


class OneEpoch:
    """gepa's stop callback: ends with the iteration that completes one epoch."""

    def __init__(self, examples: int) -> None:
        self.examples = examples
        self.iterations = 0

    def __call__(self, state: Any) -> bool:
        """Return whether one epoch has been drawn."""
        self.iterations = state.i + 1
        drawn = sum(len(set(_drawn(record))) for record in state.full_program_trace)
        return drawn >= self.examples


def _drawn(record: Mapping[str, Any]) -> list[Any]:
    return [index for task in record.get("tasks", ()) for index in task["subsample_ids"]]


class Pinned(BatchController):
    """Repeats sizes that another run planned: they depend on time, what is learned with them does not.

    Args:
        sizes: In order; the last one goes on.
    """

    name: ClassVar[str] = "pinned"

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes = sizes

    def plan(self, view: BatchView) -> BatchDecision:
        """Return the size of this iteration."""
        size = self.sizes[min(len(view.planned), len(self.sizes) - 1)]
        return BatchDecision(min(size, view.trainset_size), "as the timed run planned")


def picked_size(decisions: Sequence[BatchDecision], examples: int) -> int:
    """Return the size that the controller settled on, at most a third of the epoch, as it plans it for a whole epoch.

    What it planned last cuts the rest of an epoch, behind the sizes that it measured, into even batches. An epoch
    from its start is cut likewise here.

    Args:
        decisions: A run's decisions, in order.
        examples: Training examples.
    """
    fitted = [decision for decision in decisions if decision.fit is not None]
    if not decisions:
        return 1
    last = (fitted or decisions)[-1]
    wanted = next((clamp.before for clamp in last.clamps if clamp.name == "even"), last.size)
    size = max(1, min(wanted, examples // _UPDATES))
    updates = -(-examples // size)
    return -(-examples // updates)


def lacking(method: str) -> str:
    """Return what the method needs and this version of ``Combee`` lacks; empty for nothing."""
    argument, operator = METHODS[method].argument, METHODS[method].operator
    if argument and argument not in inspect.signature(Combee).parameters:
        return f"Combee({argument}=…)"
    return f"the operator {operator!r}" if operator and operator not in registry.names("operator") else ""


def _gepa(terms: Terms) -> Any:
    return dspy.GEPA(terms.metric, **terms.arguments())


def _gepa_naive(terms: Terms) -> Any:
    size = min(_NAIVE, terms.examples)
    return dspy.GEPA(terms.metric, reflection_minibatch_size=size, **terms.arguments())


def _gepa_pxn(terms: Terms) -> Any:
    return dspy.GEPA(terms.metric, **terms.arguments(sampling_strategy=PxNSampling(2, 4)))


def _made(terms: Terms, **chosen: Any) -> Any:
    # Nobody watches a bar that is drawn into a buffer.
    # The budget says beforehand where the end is; a callback is only asked once a minibatch is over.
    return Combee(terms.metric, budget=Budget(epochs=1), progress=False, **chosen, **terms.arguments())


def _combee(terms: Terms) -> Any:
    return _made(terms, **({"controller": Pinned(terms.sizes)} if terms.sizes else {}))


def _epoch(**chosen: Any) -> Callable[[Terms], Any]:
    def make(terms: Terms) -> Any:
        return _made(terms, reflection_minibatch_size=terms.examples, **chosen)

    return make


def _picked(**chosen: Any) -> Callable[[Terms], Any]:
    def make(terms: Terms) -> Any:
        if terms.picked is None:
            raise ArgumentValueError("picked", None, "is missing", "Time combee in the same run.")
        return _made(terms, reflection_minibatch_size=terms.picked, **chosen)

    return make


METHODS: Mapping[str, Method] = {
    "gepa": Method("dspy.GEPA, defaults", _gepa, peer=True),
    "gepa-naive-40": Method("dspy.GEPA, minibatch 40", _gepa_naive, peer=True),
    "gepa-pxn": Method("dspy.GEPA, PxN(2, 4)", _gepa_pxn, peer=True),
    "combee": Method("Combee, defaults", _combee, plans=True),
    "combee-epoch": Method("Combee, one large iteration", _epoch()),
    "combee-demos": Method(
        "Combee, one large iteration, demonstrations too", _epoch(operators=["insert", "few-shot-swap"])
    ),
    "combee-picked": Method("Combee, static, the size that was picked", _picked(), follows="combee"),
    "combee-picked-stale": Method(
        "Combee, the same with staleness=1", _picked(staleness=1), follows="combee", argument="staleness"
    ),
    "combee-scan": Method(
        "Combee, one large iteration, parallel-scan: the last call writes all lessons",
        _epoch(aggregator="parallel-scan"),
    ),
    "combee-scan-rewrite": Method(
        "Combee, one large iteration, parallel-scan and a full rewrite",
        _epoch(aggregator="parallel-scan", operators=["rewrite"]),
        operator="rewrite",
    ),
    "combee-picked-rewrite": Method(
        "Combee, static, the size that was picked, parallel-scan and full rewrites",
        _picked(aggregator="parallel-scan", operators=["rewrite"]),
        follows="combee",
        operator="rewrite",
    ),
}
"""The methods by name.

Every accepted child is validated in full by each of them: gepa's own default policy. Where the LM samples, Combee then
draws finalists within reach of the best once more.
"""

DEFAULT_METHODS = (
    "gepa",
    "gepa-naive-40",
    "gepa-pxn",
    "combee",
    "combee-picked",
    "combee-picked-stale",
    "combee-epoch",
    "combee-scan-rewrite",
)
"""The peer, as it is and with large minibatches, and what Combee offers instead; the first is the reference."""
