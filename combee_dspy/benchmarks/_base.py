"""The benchmark contract: rows in splits, a program to start from, a score, and what is known
before reading.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, cast

import dspy

from combee_dspy import registry
from combee_dspy.hashing import digest_of, row_hash
from combee_dspy.strategies import Strategy

Row = dict[str, object]
SPLITS = ("train", "validation", "heldout")

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Card:
    """A benchmark's identity: known without reading a row.

    Attributes:
        task: The task in one sentence.
        size: Rows a split, in words.
        sources: Where the rows can come from, the usual one first: ``generated``, ``path``, ``url``
            or ``hub``, its address, the commit it is pinned to, and in brackets what a reader must
            know.
        scoring: The headline's rule in one sentence.
    """

    task: str
    licence: str
    citation: str
    size: str
    sources: tuple[str, ...]
    scoring: str


@dataclass(frozen=True, slots=True)
class Availability:
    """Whether a benchmark's rows can be read here without a network (``None``: nobody can tell),
    where, or why not.
    """

    here: bool | None
    where: str


Metric = Callable[..., dspy.Prediction]
"""A metric in GEPA's protocol: ``(gold, pred, trace=None, pred_name=None, pred_trace=None)``
returns ``dspy.Prediction(score=float in [0, 1], feedback=str)``. Pure, and safe to call from any
thread.
"""


@dataclass(frozen=True, slots=True)
class Split:
    """The rows of one split (``"train"``, ``"validation"`` or ``"heldout"``), in order.

    Attributes:
        examples: One example a row, its inputs marked.
        row_hashes: SHA-256 of each raw row as the source gave it (see :mod:`combee_dspy.hashing`),
            in the order of ``examples``. They do not change with the parameters that shape an
            example.
    """

    name: str
    examples: tuple[dspy.Example, ...]
    row_hashes: tuple[str, ...]

    @property
    def digest(self) -> str:
        """SHA-256 over the row hashes in order: what pins the split."""
        return digest_of(self.row_hashes)

    @property
    def example_ids(self) -> tuple[str, ...]:
        """SHA-256 of each example: what a rollout is logged under."""
        return tuple(row_hash(example) for example in self.examples)

    def __len__(self) -> int:
        return len(self.examples)


@dataclass(frozen=True, slots=True)
class LoadedBenchmark:
    """A benchmark that has been read: everything a run needs.

    Attributes:
        name: The name it is published under.
        task: The task within the benchmark, equal to ``name`` where there is one.
        source: Where the rows came from this time, for the log.
        heldout: What nothing reads before the end.
        signature: The task as a signature; its instructions are the seed prompt.
        program: Returns a fresh default program.
        metric: The benchmark's score: the headline.
        tolerant_metric: A forgiving score to report beside it, never in its place.
        known_noise: Raw row hash to what is known to be wrong with the row's label.
        notes: What a reader must know about the rows used, such as overlaps.
        comparable: Whether rows, task and scoring are those of the published benchmark, whole and
            unchanged. ``None`` where that cannot be told, or nothing is published to compare with.
        standing: Why, or why not; empty where nothing is published.
        lessons: Hand-written lessons that hold what there is to learn: a prompt with all of them is
            the ceiling. Empty where nobody wrote them.
    """

    name: str
    task: str
    source: str
    licence: str
    citation: str
    train: Split
    validation: Split
    heldout: Split
    signature: type[dspy.Signature]
    program: Callable[[], dspy.Module]
    metric: Metric
    tolerant_metric: Metric | None = None
    known_noise: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    comparable: bool | None = None
    standing: str = ""
    lessons: tuple[str, ...] = ()

    @property
    def splits(self) -> tuple[Split, Split, Split]:
        """Train, validation and held-out, in this order."""
        return (self.train, self.validation, self.heldout)

    @property
    def pins(self) -> dict[str, str]:
        """Split name to digest: give it as ``pin=`` to require the same rows again."""
        return {split.name: split.digest for split in self.splits}

    def noisy_examples(self) -> dict[str, str]:
        """Return ``known_noise`` by example id, for the rows that are in a split."""
        return {
            example_id: self.known_noise[raw]
            for split in self.splits
            for example_id, raw in zip(split.example_ids, split.row_hashes, strict=True)
            if raw in self.known_noise
        }


class Benchmark(Strategy):
    """Reads one benchmark; one over files or the hub is a
    :class:`~combee_dspy.benchmarks.RecordBenchmark`.
    """

    kind: ClassVar[str] = "benchmark"
    card: ClassVar[Card | None] = None
    inputs: ClassVar[tuple[str, ...]] = ()
    """Fields of a raw row that the program is given, where :meth:`to_example` is not overridden."""

    def to_example(self, row: Mapping[str, object]) -> dspy.Example:
        """Return the example of one raw row, its inputs marked. By default, its fields as they
        are.
        """
        return dspy.Example(dict(row)).with_inputs(*self.inputs)

    def availability(self) -> Availability:
        """Tell whether the rows can be read here without a network. Reads none of them, and never
        raises.
        """
        return Availability(None, "the benchmark does not say")

    @abstractmethod
    def load(self) -> LoadedBenchmark:
        """Read the rows and return the benchmark: the same parameters and source give the same rows
        in the same order.

        Raises:
            DataSourceError: The rows cannot be read, are not what the benchmark needs, or differ
                from ``pin``.
            ArgumentValueError: A parameter cannot be used.
        """


def load_benchmark(name: str, **params: object) -> LoadedBenchmark:
    """Read a benchmark by name and parameters. The source that was read, rows and digests are
    logged.

    Raises:
        UnknownStrategyError: No benchmark has this name.
        PluginError: It is installed but cannot be loaded.
        ArgumentError: ``params`` do not fit its constructor, or cannot be used.
        DataSourceError: The rows cannot be read, or are not those pinned.
    """
    loaded = cast("Benchmark", registry.build("benchmark", name, params)).load()
    rows = ", ".join(f"{split.name} {len(split)} ({split.digest[:12]})" for split in loaded.splits)
    _logger.info("benchmark %s: %s from %s", loaded.name, rows, loaded.source)
    return loaded
