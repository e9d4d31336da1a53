"""From a flood of traces the informative few. Pure: the same traces give the same choice."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from itertools import accumulate
from typing import Annotated, NamedTuple

from pydantic import Field

from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.hashing import canonical_json
from combee_dspy.records import Reflection
from combee_dspy.reflections import estimate_record_tokens
from combee_dspy.strategies import parameters
from combee_dspy.texts import normalised
from combee_dspy.traces._reading import (
    RECORD_TOKENS,
    describe_outcome,
    has_steps,
    is_right,
    read_trace,
    redact_trace,
)
from combee_dspy.traces._records import Recording, Trace

__all__ = ["Selected", "Selection"]

# What tells two runs of the same thing apart, and no two things: ids, times, long numbers.
_VARYING = re.compile(
    r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b|\b(?=[a-f]*\d)[0-9a-f]{12,}\b|\b\d{6,}\b"
    r"|\b\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:?\d\d)?)?",
    re.IGNORECASE,
)
_QUOTED = re.compile(r"'[^']{0,200}'|\"[^\"]{0,200}\"|`[^`]{0,200}`")
_NUMBER = re.compile(r"\S*\d\S*")
_KIND_WORDS = 8
# Characters of what was said in which these words stand.
_DESCRIBED = 400
# An expected answer of so many characters is a label: traces of each label are a kind.
_LABEL_CHARACTERS = 40
# More kinds than these share what is left, so that memory stays bounded.
_MOST_KINDS = 2_000
_SHARED_KINDS = 64


@parameters
class Selection:
    """Which traces are read.

    Failures come before what went right. Each kind of failure has a turn before any has a second
    one; within a kind the seed draws. A kind is the class of the error, or the first words of the
    feedback without figures and quotations, with the expected answer where that is a label. Traces
    that say the same but for ids, times and long numbers are read once.

    Example:
        >>> from combee_dspy.traces import Selection, Trace
        >>> logs = [Trace(str(n), {"q": n}, {"a": "?"}, score=float(n % 2)) for n in range(4)]
        >>> [trace.id for trace in Selection(drop={"caller": "cron*"}).choose(logs).traces]
        ['0', '2', '1', '3']

    Args:
        tokens: Estimated tokens of records that readers may get, each record counted once. A scan
            reads every record as often as its aggregator's ``copies`` say.
        drop: Machine traffic: a pattern such as ``"cron*"`` by the tag that must not match it.
        perfect: The score from which a trace has nothing to mend.
        seed: Draws within a kind.
        unjudged: Whether traces are read of which nothing is said, as failures. ``Combee.compile``
            lets its metric score them.
    """

    tokens: Annotated[int, Field(ge=1_000)] = 500_000
    drop: Mapping[str, str] = Field(default_factory=dict)
    perfect: float = 1.0
    seed: int = 0
    unjudged: bool = False

    def choose(
        self, traces: Iterable[Trace], scrub: Callable[[str], str] | None = None
    ) -> Selected:
        """Read all traces, in memory that their number does not decide, and return the choice.

        Args:
            traces: Any number, in any order; the choice does not depend on it.
            scrub: Takes out of a text what no reader may see. Called before anything is read.
        """
        pool = _Pool(self, scrub)
        for trace in traces:
            pool.take(trace)
        return pool.selected()

    def is_machine(self, trace: Trace) -> bool:
        """Return whether a filter drops a trace."""
        return any(
            fnmatchcase(trace.tags.get(tag, ""), pattern) for tag, pattern in self.drop.items()
        )


@dataclass(frozen=True, slots=True)
class Selected:
    """The chosen traces in the order in which they are read, and what became of the others.

    Attributes:
        recordings: The chosen ones.
        reflections: What readers see of each.
        tokens: Estimated tokens of these records, each counted once.
        seen: How many there were.
        machine: How many a filter dropped.
        unjudged: How many nothing is said of.
        repeated: How many said what an earlier one says.
        failures: How many of the others failed.
        kinds: Their kinds by how many there were: what failed, first words of what was said.
        cursor: That of the last trace that was seen.
    """

    recordings: tuple[Recording, ...] = ()
    reflections: tuple[Reflection, ...] = ()
    tokens: int = 0
    seen: int = 0
    machine: int = 0
    unjudged: int = 0
    repeated: int = 0
    failures: int = 0
    kinds: Mapping[str, int] = field(default_factory=dict)
    cursor: str = ""

    @property
    def traces(self) -> tuple[Trace, ...]:
        """The chosen ones, redacted."""
        return tuple(recording.redacted for recording in self.recordings)

    def check(self, description: str = "") -> None:
        """Refuse what teaches nothing, with a description of its own in the error.

        Raises:
            ArgumentValueError: No trace was chosen, or none of them failed.
        """
        if not self.recordings:
            remedy = (
                "A trace needs a score, feedback, an expected answer or an error: name the fields"
                " that hold them, or log them as assessments."
            )
            raise ArgumentValueError("traces", description or str(self), "teach nothing", remedy)
        if not self.failures:
            remedy = "Give traces that failed, or raise Selection(perfect=…)."
            raise ArgumentValueError("traces", description or str(self), "all went right", remedy)

    def __str__(self) -> str:
        """Return the counts in a sentence."""
        return (
            f"{len(self.recordings)} of {self.seen} traces are read, {self.tokens:,} tokens:"
            f" {self.failures} failed in {len(self.kinds)} ways, {self.repeated} repeat,"
            f" {self.machine} are machine traffic, {self.unjudged} lack a label"
        )


@dataclass(frozen=True, slots=True)
class _Entry:
    """A trace that may still be chosen: the smallest draws of a kind are read first."""

    draw: int
    recording: Recording
    reflection: Reflection
    size: int


class _Place(NamedTuple):
    """Where an entry stands in the order of reading: failures first, each kind in its turn."""

    tier: int  # 0 for failures, 1 for what went right
    rank: int  # among its kind
    draw: int
    kind: str


class _Pool:
    """Traces so far, as many as may still be chosen. Not thread-safe.

    The place of a trace in the order of reading only grows while others come in, and each record
    takes at least as much as the smallest one so far. So what lies behind as many records of that
    size as the budget has room for is never chosen, nor is a later trace of its kind with a larger
    draw: both are dropped, whenever twice as many are held. Only a record that is smaller than all
    before, after such a cut, can make the order of arrival matter.
    """

    def __init__(self, selection: Selection, scrub: Callable[[str], str] | None) -> None:
        self._selection, self._scrub = selection, scrub
        self._entries: dict[tuple[int, str], list[_Entry]] = {}
        # By kind: the smallest draw that was dropped.
        self._limits: dict[tuple[int, str], int] = {}
        self._held = 0
        self._least = selection.tokens  # tokens of the smallest record
        self._digests: set[int] = set()
        self._counts: Counter[str] = Counter()
        self._kinds: Counter[str] = Counter()
        self._cursor = ""

    def take(self, trace: Trace) -> None:
        self._counts["seen"] += 1
        self._cursor = trace.cursor
        if self._selection.is_machine(trace):
            self._counts["machine"] += 1
            return
        if not trace.judged:
            self._counts["unjudged"] += 1
            if not self._selection.unjudged:
                return
        digest = _digest(trace, self._selection.perfect)
        if digest in self._digests:
            self._counts["repeated"] += 1
            return
        self._digests.add(digest)
        tier = int(is_right(trace, self._selection.perfect))
        kind = self._redacted(_kind if tier == 0 else _label, trace)
        if tier == 0:
            self._counts["failures"] += 1
            if kind not in self._kinds and len(self._kinds) >= _MOST_KINDS:
                kind = f"others {_hash(kind) % _SHARED_KINDS}"
            self._kinds[kind] += 1
        elif (tier, kind) not in self._entries and len(self._entries) >= 2 * _MOST_KINDS:
            kind = f"others {_hash(kind) % _SHARED_KINDS}"
        self._hold(tier, kind, trace, digest)

    def _redacted(self, describe: Callable[[Trace], str], trace: Trace) -> str:
        """Return what describes a trace's outcome; people read it."""
        scrub = self._scrub or str
        feedback = scrub(trace.feedback[:_DESCRIBED])
        expected = {name: scrub(str(value)) for name, value in trace.expected.items()}
        error = scrub(trace.error[:_DESCRIBED])
        return describe(replace(trace, feedback=feedback, expected=expected, error=error))

    def _hold(self, tier: int, kind: str, trace: Trace, digest: int) -> None:
        # The content draws, not the id or the place: every source gives the same order.
        draw = _hash(f"{self._selection.seed}/{digest}")
        if draw >= self._limits.get((tier, kind), draw + 1):
            return
        redacted = redact_trace(trace, self._scrub) if self._scrub else trace
        most = min(RECORD_TOKENS, self._selection.tokens)
        reflection = read_trace(redacted, most, perfect=self._selection.perfect)
        size = max(1, estimate_record_tokens(reflection.record))
        entry = _Entry(draw, Recording(redacted, trace), reflection, size)
        self._entries.setdefault((tier, kind), []).append(entry)
        self._held += 1
        self._least = min(self._least, size)
        if self._held > 2 * self._reach:
            self._cut()

    @property
    def _reach(self) -> int:
        """How many records the budget has room for at most."""
        return self._selection.tokens // self._least + 1

    def _cut(self) -> None:
        """Drop what the budget cannot reach."""
        ordered = self._in_order()
        for place, _ in reversed(ordered[self._reach :]):
            self._limits[place.tier, place.kind] = place.draw
        self._entries = {kind: [] for kind in self._entries}
        for place, entry in ordered[: self._reach]:
            self._entries[place.tier, place.kind].append(entry)
        self._held = len(ordered[: self._reach])

    def _in_order(self) -> list[tuple[_Place, _Entry]]:
        """Return all that is held in the order of reading."""
        places = [
            (_Place(tier, rank, entry.draw, kind), entry)
            for (tier, kind), entries in self._entries.items()
            for rank, entry in enumerate(sorted(entries, key=lambda entry: entry.draw))
        ]
        return sorted(places, key=lambda item: item[0])

    def selected(self) -> Selected:
        ordered = self._in_order()
        sizes = accumulate(entry.size for _, entry in ordered)
        ordered = ordered[: sum(size <= self._selection.tokens for size in sizes)]
        entries = [entry for _, entry in ordered]
        reflections = tuple(
            replace(entry.reflection, index=number, perfect=bool(place.tier))
            for number, (place, entry) in enumerate(ordered)
        )
        return Selected(
            tuple(entry.recording for entry in entries),
            reflections,
            sum(entry.size for entry in entries),
            self._counts["seen"],
            self._counts["machine"],
            self._counts["unjudged"],
            self._counts["repeated"],
            self._counts["failures"],
            self._kinds,
            self._cursor,
        )


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=6).digest())


def _digest(trace: Trace, perfect: float) -> int:
    """Return what traces share that say the same but for what varies from run to run.

    Calls that add nothing do not count: some sources record them, and others do not.
    """
    steps = [call.outputs for call in trace.calls] if has_steps(trace) else []
    what = [trace.inputs, trace.outputs, describe_outcome(trace, perfect), trace.error, steps]
    return _hash(_VARYING.sub("#", canonical_json(what)).casefold())


def _kind(trace: Trace) -> str:
    """Return in which way a trace failed, and what would have been right where that is a label."""
    error = trace.error.partition(":")[0]
    text = trace.feedback or trace.error.partition(":")[2]
    words = _NUMBER.sub("#", normalised(_QUOTED.sub("#", text))).split()[:_KIND_WORDS]
    return ": ".join(filter(None, (error, " ".join(words), _label(trace))))


def _label(trace: Trace) -> str:
    values = [str(value) for value in trace.expected.values()]
    return "; ".join(value for value in values if len(value) <= _LABEL_CHARACTERS)
