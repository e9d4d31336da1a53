"""Reads the runs of a journal as records."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, Generic

from pydantic import ConfigDict, JsonValue, TypeAdapter

from combee_dspy.events import E, Event, decode, read_json
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.journal._rows import Reader

_LAST = sys.maxsize
_COLUMNS = "id, name, state, created, finished, seed, identity, description, result"


@dataclass(frozen=True, slots=True)
class Entry(Generic[E]):
    """An event with its place in the journal.

    Attributes:
        id: Its number in the journal.
        run: The run's number.
        at: Unix time.
        step: The update; −1 before the first.
        component: The component that it is about; empty for none.
        event: The event.
    """

    id: int
    run: int
    at: float
    step: int
    component: str
    event: E


@dataclass(frozen=True, slots=True)
class Description:
    """What a run is, as it was described before it began.

    Attributes:
        program: Class of the student.
        specs: Strategies by kind, as JSON.
        models: Name of the model by role.
        evaluator: Who scores.
        digests: SHA-256 by split; ``None`` for an empty one.
        sizes: Rows by split.
        traces: Which recorded rollouts are read, in words; empty where there are none.
        traces_seen: How many recorded rollouts the source held; ``None`` where there are none.
        versions: Version by package.
        limits: The budget's limits; ``None`` for none.
        simulated: Whether a model is simulated.
        serving: The program's name where the run is a server's.
    """

    __pydantic_config__: ClassVar[ConfigDict] = {"allow_inf_nan": False}

    program: str = ""
    specs: Mapping[str, JsonValue] = field(default_factory=dict)
    models: Mapping[str, str] = field(default_factory=dict)
    evaluator: str | None = None
    digests: Mapping[str, str | None] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)
    traces: str = ""
    traces_seen: int | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    limits: Mapping[str, float | None] = field(default_factory=dict)
    simulated: bool = False
    serving: JsonValue = None

    def spec(self, kind: str) -> Mapping[str, JsonValue]:
        """Return the strategy of a kind, such as ``"aggregator"``; empty where there is none."""
        spec = self.specs.get(kind)
        return spec if isinstance(spec, dict) else {}


@dataclass(frozen=True, slots=True)
class Result:
    """How a run ended.

    Attributes:
        best_score: Validation score of the returned program.
        heldout: The held-out figures; ``None`` where nothing was held out.
        warnings: What makes the run unfit for claims, in sentences; ``None`` where it has failed.
    """

    __pydantic_config__: ClassVar[ConfigDict] = {"allow_inf_nan": False}

    best_score: float | None = None
    heldout: JsonValue = None
    warnings: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class RunRecord:
    """The row of a run.

    Attributes:
        id: Its number in the journal.
        name: Its task; ``"main"`` for a single one.
        state: ``"running"``, ``"finished"`` or ``"failed"``.
        created: Unix time.
        finished: Unix time; ``None`` while it goes on.
        seed: The run's seed.
        identity: What it may be resumed with, as JSON.
        description: What it is, as JSON.
        result: How it ended, as JSON; ``None`` before.
    """

    id: int
    name: str
    state: str
    created: float
    finished: float | None
    seed: int | None
    identity: str
    description: str
    result: str | None


class RunHistory:
    """Reads the events of one run, or of all runs of a journal, in the order of the journal.

    Nothing is held in memory: each call reads what the journal has by then. Belongs to the thread
    of its reader.

    Args:
        reader: Of the journal. Borrowed.
        run: The run's number; ``None`` for the events of all runs.

    Example::

        with Reader(journal_file("runs/today")) as reader:
            for entry in RunHistory(reader, 1).entries(CandidateValidated):
                print(entry.step, entry.event.score)
    """

    def __init__(self, reader: Reader, run: int | None = None) -> None:
        self.reader = reader
        self.run = run
        self._path = str(reader.path)

    @property
    def record(self) -> RunRecord:
        """The row of the run, as it is now.

        Raises:
            ArgumentValueError: The journal has no such run.
        """
        rows = self.reader.rows(f"SELECT {_COLUMNS} FROM run WHERE id = ?", (self.run,))  # noqa: S608 - constants
        if not rows:
            remedy = "Give the number of a run of this journal."
            raise ArgumentValueError("run", self.run, "is no run of this journal", remedy)
        return RunRecord(*rows[0])

    @cached_property
    def about(self) -> Description:
        """What the run is.

        Raises:
            JournalDamagedError: It cannot be read.
        """
        return read_json(_DESCRIPTION, self.record.description, "the run's description", self._path)

    @property
    def description(self) -> Mapping[str, JsonValue]:
        """All that describes the run, with fields that :attr:`about` does not name.

        Raises:
            JournalDamagedError: It cannot be read.
        """
        return read_json(_VALUES, self.record.description, "the run's description", self._path)

    @property
    def result(self) -> Result | None:
        """How the run ended; ``None`` while it goes on.

        Raises:
            JournalDamagedError: It cannot be read.
        """
        text = self.record.result
        return None if text is None else read_json(_RESULT, text, "the run's result", self._path)

    def entries(
        self,
        *kinds: type[E],
        after: int = 0,
        upto: int = _LAST,
        last_step: int | None = None,
        newest_first: bool = False,
    ) -> Iterator[Entry[E]]:
        """Return the events of some classes, oldest first.

        Args:
            kinds: Classes of events.
            after: Only those with a larger number.
            upto: Only those with at most this number.
            last_step: Only those of updates up to this one; all by default.
            newest_first: Whether to turn the order round.

        Raises:
            JournalDamagedError: An event cannot be read.
        """
        classes = {kind.kind: kind for kind in kinds}
        names = ", ".join(f"'{name}'" for name in classes)
        sql = (
            "SELECT id, run, at, step, component, kind, data FROM event"  # noqa: S608 - names of classes
            f" WHERE kind IN ({names}) AND (?1 IS NULL OR run = ?1) AND id > ?2 AND id <= ?3"
            f" AND (?4 IS NULL OR step <= ?4) ORDER BY id{' DESC' if newest_first else ''}"
        )
        for row in self.reader.stream(sql, (self.run, after, upto, last_step)):
            number, run, at, step, component, kind, data = row
            event = decode(classes[kind], data, path=self._path, number=number)
            yield Entry(number, run, at, step, component or "", event)

    def last(self, kind: type[E]) -> E | None:
        """Return the newest event of a class; ``None`` where there is none.

        Raises:
            JournalDamagedError: It cannot be read.
        """
        sql = (
            "SELECT id, data FROM event WHERE kind = ?2 AND (?1 IS NULL OR run = ?1)"
            " ORDER BY id DESC LIMIT 1"
        )
        rows = self.reader.rows(sql, (self.run, kind.kind))
        return decode(kind, rows[0][1], path=self._path, number=rows[0][0]) if rows else None

    def count(self, kind: type[Event]) -> int:
        """Return how many events of a class there are."""
        sql = "SELECT count(*) FROM event WHERE kind = ?2 AND (?1 IS NULL OR run = ?1)"
        return int(self.reader.rows(sql, (self.run, kind.kind))[0][0])


_DESCRIPTION = TypeAdapter(Description)
_RESULT = TypeAdapter(Result)
_VALUES: TypeAdapter[dict[str, JsonValue]] = TypeAdapter(dict[str, JsonValue])
