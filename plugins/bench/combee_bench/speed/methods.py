"""The methods that are timed beside each other, each by the defaults of its own constructor."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from typing import Any

import dspy
from gepa.strategies.proposal_sampling import PxNSampling

from combee_dspy import Budget, Combee, Search, Validation

__all__ = ["METHODS", "Method", "OneEpoch", "Terms"]

# Far beyond what an epoch needs: the epoch ends the run, never this.
_NO_LIMIT = 1_000_000
_LARGE = 40
_UPDATES = 4
"""Updates an epoch of the methods whose minibatch is set: 60 of 240 examples."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What every method is given: where to end and with what, and nothing that is a choice.

    Attributes:
        metric: The benchmark's metric.
        examples: Training examples, which make one epoch.
        threads: Threads of the method: the slots of the service.
        seed: Seed of the method.
        lm: Writes.
        stop: Ends a run of ``dspy.GEPA`` after one epoch, and counts its iterations.
        auto: The budget of GEPA's that ends it instead.
    """

    metric: Any
    examples: int
    threads: int
    seed: int
    lm: dspy.LM
    stop: OneEpoch
    auto: Any = None


@dataclass(frozen=True, slots=True)
class Method:
    """One method.

    Attributes:
        label: What it is, in a few words.
        make: Makes the optimizer.
    """

    label: str
    make: Callable[[Terms], Any]


class OneEpoch:
    """gepa's stop callback: ends with the iteration that completes one epoch.

    Args:
        examples: Training examples, which make one epoch; ``None`` to end nothing, and count.
    """

    def __init__(self, examples: int | None) -> None:
        self.examples = examples
        self.iterations = 0

    def __call__(self, state: Any) -> bool:
        """Return whether one epoch has been drawn."""
        self.iterations = state.i + 1
        if self.examples is None:
            return False
        drawn = (
            index
            for record in state.full_program_trace
            for task in record.get("tasks", ())
            for index in dict.fromkeys(task["subsample_ids"])
        )
        return sum(1 for _ in drawn) >= self.examples


def _gepa(terms: Terms, **chosen: Any) -> Any:
    sampling = chosen.pop("sampling_strategy", None)
    kwargs = {
        "stop_callbacks": [terms.stop],
        **({"sampling_strategy": sampling} if sampling else {}),
    }
    if "reflection_minibatch_size" in chosen:
        chosen["reflection_minibatch_size"] = min(
            chosen["reflection_minibatch_size"], terms.examples
        )
    limit = {"max_metric_calls": _NO_LIMIT} if terms.auto is None else {"auto": terms.auto}
    return dspy.GEPA(
        terms.metric,
        **limit,
        reflection_lm=terms.lm,
        num_threads=terms.threads,
        seed=terms.seed,
        track_stats=True,
        gepa_kwargs=kwargs,
        **chosen,
    )


def _map_reduce(terms: Terms) -> Any:
    """Return ``dspy.GEPA`` with what a user writes in twenty lines: groups are read at once, one
    call joins them.
    """
    read = dspy.Predict(
        "current_instruction, examples_with_feedback: list[str] -> lessons: list[str]"
    )
    join = dspy.Predict("current_instruction, lessons: list[str] -> improved_instruction")

    def propose(
        candidate: dict[str, str],
        reflective_dataset: Mapping[str, Sequence[Any]],
        components_to_update: list[str],
    ) -> dict[str, str]:
        texts = {}
        for name in components_to_update:
            records = [str(record) for record in reflective_dataset[name]]
            size = math.isqrt(len(records)) + 1
            groups = [records[start : start + size] for start in range(0, len(records), size)]

            def learn(group: list[str], text: str = candidate[name]) -> list[str]:
                with dspy.context(lm=terms.lm):
                    return list(
                        read(current_instruction=text, examples_with_feedback=group).lessons
                    )

            with ThreadPoolExecutor(len(groups)) as pool:
                # Calls are counted where context variables reach.
                reading = [pool.submit(copy_context().run, learn, group) for group in groups]
            lessons = [lesson for read_group in reading for lesson in read_group.result()]
            with dspy.context(lm=terms.lm):
                joined = join(
                    current_instruction=candidate[name], lessons=list(dict.fromkeys(lessons))
                )
            texts[name] = joined.improved_instruction
        return texts

    return _gepa(terms, reflection_minibatch_size=terms.examples, instruction_proposer=propose)


def _combee(terms: Terms, *, updates: int | None = None, finds: bool = False, **chosen: Any) -> Any:
    if updates is not None:
        chosen["reflection_minibatch_size"] = -(-terms.examples // updates)
    return Combee(
        terms.metric,
        **({"budget": Budget(epochs=1)} if terms.auto is None else {"auto": terms.auto}),
        reflection_lm=terms.lm,
        num_threads=None if finds else terms.threads,
        seed=terms.seed,
        validation=Validation(probe=False),
        **chosen,
    )


def _keeping(keep: Any, staleness: int) -> Callable[[Terms], Any]:
    return partial(
        _combee, updates=_UPDATES, aggregator="union", search=Search(keep=keep, staleness=staleness)
    )


_OLD: Mapping[str, Any] = {"aggregator": "union", "search": Search(keep="pareto")}  # 0.2's defaults
_LARGE_UPDATE = partial(_combee, updates=1, **_OLD)


METHODS: Mapping[str, Method] = {
    "gepa": Method("dspy.GEPA, defaults", _gepa),
    "gepa-40": Method("dspy.GEPA, minibatch 40", partial(_gepa, reflection_minibatch_size=_LARGE)),
    "gepa-pxn": Method("dspy.GEPA, P×N(2, 4)", partial(_gepa, sampling_strategy=PxNSampling(2, 4))),
    "gepa-map-reduce": Method("dspy.GEPA, a map-reduce proposer over the whole epoch", _map_reduce),
    "combee": Method("Combee, defaults", _combee),
    "combee-union": Method("Combee, union, pareto: 0.2's defaults", partial(_combee, **_OLD)),
    "combee-finds": Method(
        "Combee, defaults, not told how many calls are served", partial(_combee, finds=True)
    ),
    "combee-pareto": Method("Combee, union, four updates, pareto", _keeping("pareto", 0)),
    "combee-pareto-s1": Method(
        "Combee, union, four updates, pareto, staleness 1", _keeping("pareto", 1)
    ),
    "combee-trunk": Method("Combee, union, four updates, trunk", _keeping("trunk", 0)),
    "combee-trunk-s1": Method(
        "Combee, union, four updates, trunk, staleness 1", _keeping("trunk", 1)
    ),
    "combee-trunk-s2": Method(
        "Combee, union, four updates, trunk, staleness 2", _keeping("trunk", 2)
    ),
    "combee-epoch": Method("Combee, union, one large update, pareto", _LARGE_UPDATE),
    "combee-epoch-trunk": Method(
        "Combee, union, one large update, trunk",
        partial(_LARGE_UPDATE, search=Search(keep="trunk")),
    ),
    "combee-reference": Method(
        "Combee, reference-scan, trunk",
        partial(_combee, aggregator="reference-scan", search=Search(keep="trunk")),
    ),
    "combee-epoch-reference": Method(
        "Combee, one large update, reference-scan, trunk",
        partial(_combee, updates=1, aggregator="reference-scan", search=Search(keep="trunk")),
    ),
    "combee-scan": Method(
        "Combee, one large update, parallel-scan",
        partial(_LARGE_UPDATE, aggregator="parallel-scan"),
    ),
    "combee-scan-rewrite": Method(
        "Combee, one large update, parallel-scan and a full rewrite",
        partial(_LARGE_UPDATE, aggregator="parallel-scan", operators=["rewrite"]),
    ),
}
"""The methods by name: the peer as it is, with large minibatches and in parallel, and what Combee
offers instead.
"""
