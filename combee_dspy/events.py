"""What a run made of its effects, as frozen records: one class for each kind of event in a journal.

Writers construct a record and pass it to ``emit``; readers get the same record back from
:class:`combee_dspy.journal.RunHistory`. :func:`encode` and :func:`decode` are the only code that
knows the JSON between them. Data that an older version wrote stays readable: a field that came
later has a default, and fields that nobody knows any more are ignored.

Another room, or a plugin, adds a kind of its own by a subclass of :class:`Event`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeVar

from pydantic import ConfigDict, JsonValue, TypeAdapter, ValidationError

from combee_dspy.edits import LessonEffect
from combee_dspy.exceptions import JournalDamagedError
from combee_dspy.json_texts import dump
from combee_dspy.lessons import Book, BookLesson, Decision, State
from combee_dspy.records import Clamp, NodeOutput, PowerLawFit


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that a run made of its effects.

    Attributes:
        kind: Its name in the journal.
        single: Whether an update and component have one event of this kind, whatever its data.
        whole: The field whose value is all of the JSON; empty where each field has a key.
    """

    __pydantic_config__: ClassVar[ConfigDict] = {"allow_inf_nan": False}
    kind: ClassVar[str]
    single: ClassVar[bool] = False
    whole: ClassVar[str] = ""


E = TypeVar("E", bound=Event)
T = TypeVar("T")


class Emit(Protocol):
    """Writes an event into a run's journal; returns at once."""

    def __call__(self, event: Event, *, step: int = -1, component: str = "") -> None:
        """Write an event of an update (−1 before the first) and a component (empty for none)."""


def encode(event: Event) -> str:
    """Return an event as JSON."""
    return dump(getattr(event, event.whole) if event.whole else event)


def decode(kind: type[E], text: str, *, path: str, number: int) -> E:
    """Return the event that a text holds.

    Args:
        kind: Its class.
        text: JSON, of whatever origin.
        path: The journal's file, to name it in an error.
        number: The event's id there.

    Raises:
        JournalDamagedError: The text is no JSON, or a value is missing or of another type.
    """
    if kind.whole:
        text = f'{{"{kind.whole}":{text}}}'
    if kind not in _ADAPTERS:
        _ADAPTERS[kind] = TypeAdapter(kind)
    adapter: TypeAdapter[E] = _ADAPTERS[kind]
    return read_json(adapter, text, f"event {number} ({kind.kind})", path)


_ADAPTERS: dict[type[Event], TypeAdapter[Any]] = {}


def read_json(adapter: TypeAdapter[T], text: str, name: str, path: str) -> T:
    """Return what a text of a journal holds.

    Args:
        adapter: Of its type.
        text: JSON, of whatever origin.
        name: What an error calls it.
        path: The journal's file, to name it in an error.

    Raises:
        JournalDamagedError: The text is no JSON, or a value is missing or of another type.
    """
    try:
        return adapter.validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"])) or "data"
        raise JournalDamagedError(path, f"{name} cannot be read: {place}: {first['msg']}") from None


@dataclass(frozen=True, slots=True)
class RunStarted(Event):
    """A run began, or went on: who compiled what with which code.

    Attributes:
        user: As :class:`~combee_dspy.Privacy` lets the user be named.
        host: The machine; the same.
        process: The process's id.
        python: Version of Python.
        version: Version of this package.
        dspy: Version of DSPy.
        commit: The repository's; ``None`` outside of one.
        program: Hash of the student.
        metric: Hash of the metric's code.
        texts: What is written of inputs, outputs and feedback.
        at: Unix time.
    """

    kind: ClassVar[str] = "audit"
    user: str | None
    host: str | None
    process: int
    python: str
    version: str
    dspy: str
    commit: str | None
    program: str
    metric: str
    texts: str
    at: float | None = None


@dataclass(frozen=True, slots=True)
class CandidateProposed(Event):
    """A candidate was proposed, by content hash.

    Attributes:
        candidate: Its content hash.
        texts: Its texts by component.
        parents: Content hashes of its parents; none for the student.
        operator: What made it.
        components: The components that differ from the first parent.
    """

    kind: ClassVar[str] = "candidate"
    candidate: str
    texts: Mapping[str, str]
    parents: tuple[str, ...]
    operator: str
    components: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ChildRefused(Event):
    """An operator made no child of a parent, and why."""

    kind: ClassVar[str] = "refused"
    operator: str
    reason: str
    parent: str


@dataclass(frozen=True, slots=True)
class CopiesRemoved(Event):
    """Lines that repeated training examples word for word were cut out."""

    kind: ClassVar[str] = "copied"
    lines: tuple[str, ...]
    count: int


@dataclass(frozen=True, slots=True)
class CandidateScreened(Event):
    """A candidate ran on rows of its minibatch beside its parent."""

    kind: ClassVar[str] = "screened"
    candidate: str
    parent: str
    rows: int
    score: float
    parent_score: float
    accepted: bool
    reason: str


@dataclass(frozen=True, slots=True)
class CandidateValidated(Event):
    """A candidate was validated.

    Attributes:
        candidate: Its content hash.
        index: Its position among the validated ones; 0 is the student.
        score: Its mean; ``None`` where no row was scored.
        rows: Rows that were scored.
        best: Whether it is the best so far.
    """

    kind: ClassVar[str] = "validated"
    candidate: str
    index: int
    score: float | None
    rows: int
    best: bool


@dataclass(frozen=True, slots=True)
class BatchPlanned(Event):
    """The size of an update's minibatch, in examples, and why."""

    kind: ClassVar[str] = "batch"
    single: ClassVar[bool] = True
    size: int
    reason: str
    fit: PowerLawFit | None
    clamps: tuple[Clamp, ...]


@dataclass(frozen=True, slots=True)
class UpdateEnded(Event):
    """An update ended.

    Attributes:
        parent: Content hash of the candidate that it ran.
        components: The components that learned.
        rows: Size of its minibatch.
        started: Unix time.
        seconds: Wall-clock seconds until its commit.
        skipped: Why there was nothing to learn; empty where there was.
    """

    kind: ClassVar[str] = "update"
    single: ClassVar[bool] = True
    parent: str
    components: tuple[str, ...]
    rows: int
    started: float
    seconds: float
    skipped: str = ""


@dataclass(frozen=True, slots=True)
class ScanLesson:
    """A lesson of a scan, and the positions of the reflections that teach it."""

    text: str
    sources: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ScanReflection:
    """What became of one reflection; see :class:`combee_dspy.records.Retained`.

    ``example`` is the hash of the row that it is about.
    """

    index: int
    coverage: float
    covered: bool
    lost_at: tuple[int, int] | None
    measurable: bool
    lesson: int | None = None
    example: str | None = None


@dataclass(frozen=True, slots=True)
class ScanEnded(Event):
    """An aggregator turned the reflections of an update into lessons.

    Attributes:
        aggregator: Its name; empty for none.
        n: Reflections.
        copies: How many shards read each reflection.
        nodes: What each call read and returned.
        lessons: The result.
        retained: What became of each reflection.
    """

    kind: ClassVar[str] = "scan"
    aggregator: str
    n: int
    copies: int
    nodes: tuple[NodeOutput, ...]
    lessons: tuple[ScanLesson, ...]
    retained: tuple[ScanReflection, ...]

    @property
    def failed(self) -> int:
        """How many calls failed."""
        return sum(node.failed is not None for node in self.nodes)


@dataclass(frozen=True, slots=True)
class BookLine:
    """A lesson of a book as the journal keeps it; see :class:`combee_dspy.lessons.BookLesson`."""

    id: str
    text: str
    sources: tuple[str, ...] = ()
    against: tuple[str, ...] = ()
    born: int = 0
    state: State = "served"
    reason: str = ""
    effect: LessonEffect | None = None
    rule: str = ""
    rivals: tuple[str, ...] = ()
    wordings: tuple[str, ...] = ()
    own: bool = False
    decision: Decision | None = None


_OF_LINE = tuple(BookLine.__dataclass_fields__)


@dataclass(frozen=True, slots=True)
class BookChanged(Event):
    """The book of a component after an update changed it."""

    kind: ClassVar[str] = "book"
    lessons: tuple[BookLine, ...]

    @classmethod
    def of(cls, book: Book) -> BookChanged:
        """Return the event that keeps a book."""
        lines = (
            BookLine(**{name: getattr(lesson, name) for name in _OF_LINE})
            for lesson in book.lessons
        )
        return cls(tuple(lines))

    @property
    def book(self) -> Book:
        """The book."""
        # Journals of before wordings were written hold the first one alone.
        return Book(
            tuple(
                BookLesson(
                    **{name: getattr(line, name) for name in _OF_LINE if name != "wordings"},
                    wordings=line.wordings or (line.id,),
                )
                for line in self.lessons
            )
        )


@dataclass(frozen=True, slots=True)
class LessonTested(Event):
    """One test of a lesson on validation rows, together with others.

    Attributes:
        lesson: The lesson's id.
        text: Its wording then.
        serve: Whether it was tried in the prompt; else it was left out.
        together: Changes that were tried at once, this one among them.
        rows: Validation rows that decided.
        wins: Rows that scored more with the changes.
        losses: Rows that scored less.
        accepted: Whether the changes were made.
    """

    kind: ClassVar[str] = "tested"
    lesson: str
    text: str
    serve: bool
    together: int
    rows: int
    wins: int
    losses: int
    accepted: bool

    def __str__(self) -> str:
        """Return the test and its result in a sentence."""
        what = "put into the prompt" if self.serve else "left out"
        others = f" with {self.together - 1} more" if self.together > 1 else ""
        result = f"{self.wins} better, {self.losses} worse of {self.rows} validation rows"
        return f"{what}{others}: {result}, {'accepted' if self.accepted else 'not accepted'}"


@dataclass(frozen=True, slots=True)
class AnswersIgnored(Event):
    """Parts of readers' answers that code could not use, and the first reasons."""

    kind: ClassVar[str] = "void"
    count: int
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LimitChanged(Event):
    """The most effects in flight changed."""

    kind: ClassVar[str] = "limit"
    limit: int
    reason: str


@dataclass(frozen=True, slots=True)
class WarningRaised(Event):
    """A person should know this.

    Attributes:
        logged: Whether the logger has it as well, which shows it in full.
    """

    kind: ClassVar[str] = "warning"
    text: str
    logged: bool = False


@dataclass(frozen=True, slots=True)
class ErrorRaised(Event):
    """A part failed, and the run went on without it."""

    kind: ClassVar[str] = "error"
    where: str
    error: str


@dataclass(frozen=True, slots=True)
class HeldoutRead(Event):
    """The held-out rows were read: mean scores, their difference and its interval.

    ``look`` counts how often these rows were read, this time included.
    """

    kind: ClassVar[str] = "heldout"
    before: float
    after: float
    difference: float
    low: float
    high: float
    n: int
    look: int = 1


@dataclass(frozen=True, slots=True)
class PointPriced(Event):
    """What a held-out point above a serial baseline has cost.

    The fields are those of :class:`combee_dspy.evaluation.CostPerPoint`; ``text`` is its sentence.
    """

    kind: ClassVar[str] = "per_point"
    baseline: Mapping[str, float | None]
    points: float
    rollouts: float | None = None
    tokens: float | None = None
    dollars: float | None = None
    gpu_seconds: float | None = None
    seconds: float | None = None
    versus: Mapping[str, float] | None = None
    margin: float = 0.02
    faster: float | None = None
    text: str = ""


@dataclass(frozen=True, slots=True)
class CostReserved(Event):
    """What an effect may cost at most where that is limited, before it is sent."""

    kind: ClassVar[str] = "granted"
    effect: str
    most: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class AnswersLost(Event):
    """Calls of an effect got no answer that could be read, though their service may have charged.

    Attributes:
        effect: Its key.
        answers: How many calls.
        most: What they may have cost at most, of what is limited.
        began: When the effect began, in seconds since 1970.
    """

    kind: ClassVar[str] = "lost"
    effect: str
    answers: int
    most: Mapping[str, float]
    began: float


@dataclass(frozen=True, slots=True)
class CandidateSelected(Event):
    """A candidate was chosen as the result."""

    kind: ClassVar[str] = "selected"
    candidate: str
    index: int | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class RunStopped(Event):
    """The search ended, and why."""

    kind: ClassVar[str] = "stopped"
    reason: str


@dataclass(frozen=True, slots=True)
class ProgramReturned(Event):
    """The state of the returned program without its LMs, as ``program.save`` writes it."""

    kind: ClassVar[str] = "program"
    state: Mapping[str, JsonValue]


@dataclass(frozen=True, slots=True)
class PairScored(Event):
    """A server's request that both versions answered.

    Attributes:
        request: Hash of its inputs.
        at: Unix time.
        incumbent: Number of the incumbent's version.
        sha256: Hash of the challenger; empty in journals of before.
        by: Who scored.
        before: The incumbent's score.
        after: The challenger's.
    """

    kind: ClassVar[str] = "pair"
    request: str
    at: float
    incumbent: int
    sha256: str = ""
    by: str = ""
    before: float = 0.0
    after: float = 0.0


@dataclass(frozen=True, slots=True)
class ShadowsCounted(Event):
    """A server's shadows so far, by what became of them."""

    kind: ClassVar[str] = "shadows"
    whole: ClassVar[str] = "counts"
    counts: Mapping[str, int]
