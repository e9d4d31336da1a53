"""Records of a held-out set: its identity, and the receipts of pinning and reading it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from pydantic import ConfigDict, JsonValue, TypeAdapter, ValidationError

from combee_dspy.evaluation._compare import PairedDifference, paired_difference
from combee_dspy.events import Event
from combee_dspy.exceptions import ArgumentValueError, SplitOverlapError
from combee_dspy.hashing import canonical_json, digest_of, row_hash
from combee_dspy.streams import derive_seed

_STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)


@dataclass(frozen=True, slots=True)
class HeldoutIdentity:
    """A held-out set as it is pinned, with the sets that it must stay apart from.

    Attributes:
        content: SHA-256 of its rows and of which of their fields are inputs, in any order: a mean
            does not depend on it. A label that becomes an input makes another task.
        digest: SHA-256 of its row hashes in their order, as logs show it.
        metric: Fingerprint of the metric's code, feedback included. It is kept to explain scores
            that differ, and is no part of what is held out.
        rows: Its row hashes, 16 hex digits each, in their order; empty where a run holds nothing
            out.
        train: Row hashes of the training set.
        validation: Row hashes of the validation set.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    content: str
    digest: str
    metric: str
    rows: tuple[str, ...]
    train: tuple[str, ...] = ()
    validation: tuple[str, ...] = ()

    @property
    def n(self) -> float:
        """How many independent rows it amounts to: Kish's n²/Σm² with m copies of a row."""
        counts = Counter(self.rows).values()
        return sum(counts) ** 2 / sum(count * count for count in counts) if counts else 0.0


def heldout_identity(
    rows: Sequence[object],
    metric: str,
    *,
    train: Iterable[str] = (),
    validation: Iterable[str] = (),
) -> HeldoutIdentity:
    """Return what a held-out set is known by.

    Args:
        rows: Its examples; none where the run holds nothing out, so that a later one cannot hold
            out what this one learned from.
        metric: The metric's fingerprint.
        train: Row hashes of the training set.
        validation: Row hashes of the validation set.

    Raises:
        SplitOverlapError: A row is in another split too.
    """
    hashes = [row_hash(row) for row in rows]
    keys = [sorted(map(str, row.inputs().keys())) if hasattr(row, "inputs") else [] for row in rows]
    contents = [
        f"{digest} {canonical_json(names)}" for names, digest in zip(keys, hashes, strict=True)
    ]
    own, learned, compared = (tuple(item[:16] for item in of) for of in (hashes, train, validation))
    for name, other in (("trainset", learned), ("valset", compared)):
        if shared := len(set(own) & set(other)):
            raise SplitOverlapError("heldout", name, shared)
    return HeldoutIdentity(
        digest_of(sorted(contents)), digest_of(hashes), metric, own, learned, compared
    )


@dataclass(frozen=True, slots=True)
class Receipt(Event):
    """One step of the held-out contract, as the journal keeps it.

    Attributes:
        stage: ``"pinned"`` before the first rollout of a run; ``"begun"`` before the set is read:
            from here on it counts as read, whatever happens; ``"read"`` with what it showed.
        run: The run, such as ``"run 2, 1f3a9c0d"``: its id in the journal, and what tells it from
            runs of other journals.
        at: When, ISO 8601 with offset.
        heldout: What is read, by which metric.
        programs: Hashes of the programs before and after; empty at ``"pinned"``.
        before: The first program's score per row, in the order of ``heldout.rows``; empty but at
            ``"read"``.
        after: The second's.
        difference: What they show; ``None`` but at ``"read"``.
        detectable: The difference that the set could tell before it was read.
        looks: How often any of these rows had been read before, by this run too.
        seed: The run's seed, from which the interval's resampling is derived.
        models: Model name by role.
        warnings: What makes the figures weaker than they look, in sentences.
        study: The study's name; empty where the user gave none.
        setting: Hash of the untouched program with its LMs and adapter: where it is the same, so
            should be the scores before.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT
    kind: ClassVar[str] = "receipt"

    stage: Literal["pinned", "begun", "read"]
    run: str
    at: str
    heldout: HeldoutIdentity
    programs: tuple[str, ...] = ()
    before: tuple[float, ...] = ()
    after: tuple[float, ...] = ()
    difference: PairedDifference | None = None
    detectable: float = 0.0
    looks: int = 0
    seed: int = 0
    models: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    study: str = ""
    setting: str = ""

    @property
    def number(self) -> int:
        """The run's id in its journal."""
        return int(self.run.removeprefix("run ").partition(",")[0])

    def rescored(self, earlier: Receipt) -> int:
        """Return how many rows score otherwise for the same untouched program, where another
        metric's code scored.
        """
        same = self.setting and (self.setting, self.heldout.content) == (
            earlier.setting,
            earlier.heldout.content,
        )
        if not same or earlier.stage != "read" or self.heldout.metric == earlier.heldout.metric:
            return 0
        old, new = (
            sorted(zip(receipt.heldout.rows, receipt.before, strict=True))
            for receipt in (earlier, self)
        )
        return sum(before != after for before, after in zip(old, new, strict=True))

    def discordance(self) -> float | None:
        """Return the mean squared change of a row's score, at most 1.

        For scores of 0 and 1 it is the share of rows that changed. ``None`` where both programs are
        one, or nothing was read: that measures nothing.
        """
        if self.stage != "read" or len(set(self.programs)) < 2:
            return None
        squares = [(new - old) ** 2 for old, new in zip(self.before, self.after, strict=True)]
        return min(1.0, sum(squares) / len(squares))

    def against(self, other: Receipt) -> PairedDifference:
        """Return how much better this result is than another's on the same held-out rows, in
        whatever order.
        """
        pairs = [
            sorted(zip(receipt.heldout.rows, receipt.after, strict=True))
            for receipt in (other, self)
        ]
        level = 0.95 if self.difference is None else self.difference.confidence
        before, after = ([score for _, score in receipt] for receipt in pairs)
        return paired_difference(
            before, after, confidence=level, seed=derive_seed(self.seed, "baseline")
        )

    def to_dict(self) -> dict[str, JsonValue]:
        """Return plain JSON data whose JSON :meth:`from_json` reads back."""
        plain: dict[str, JsonValue] = _RECEIPT.dump_python(self, mode="json")
        return plain

    @classmethod
    def from_json(cls, text: str) -> Receipt:
        """Read the JSON of what :meth:`to_dict` returned, and nothing else.

        Raises:
            ArgumentValueError: A field is missing, unknown, or of another type; a figure is not
                finite.
        """
        try:
            return _RECEIPT.validate_json(text)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, ("receipt", *first["loc"])))
            remedy = "It is not as it was written: restore the journal."
            raise ArgumentValueError(
                where, first.get("input"), f"is refused: {first['msg']}", remedy
            ) from error


_RECEIPT: TypeAdapter[Receipt] = TypeAdapter(Receipt)
