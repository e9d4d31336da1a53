"""Which calls needed which, read off what the service was asked and answered. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from combee_dspy.bench.bound import Call, in_stages
from combee_dspy.lms.simulated import CallRecord, Kind, SimulatedTask
from combee_dspy.lms.simulated.matching import QuestionIndex

__all__ = ["calls_of"]


@dataclass(frozen=True, slots=True)
class _Read:
    """What one call says about others.

    Attributes:
        prompt: What tells its candidate from others; ``None`` for calls that are no rollouts.
        asked: The question that a rollout asks; ``None`` where none is known.
        shown: Questions with their answers in the prompt: records and demonstrations.
        read: Lessons in the prompt.
        written: Lessons in the answer of a reflection.
    """

    prompt: str | None
    asked: int | None
    shown: frozenset[int]
    read: frozenset[str]
    written: frozenset[str]


def calls_of(records: Sequence[CallRecord], task: SimulatedTask) -> list[Call]:
    """Return the calls of a run with their stages and needs.

    Two rules, on texts alone, the same for every method:

    - What shows a question with its answer (a reflection's record, a demonstration)
      needs the last rollout of that question that had ended.
    - What holds a lesson needs every reflection that had written it: a join waits
      for all its parts.

    What a rollout's prompt holds was there when its candidate was first run, so
    "had ended" means before the first rollout of the candidate; for other calls
    it means before the call. Decisions (which parent, whether a child is kept) leave no
    trace in texts and are no needs; where a method waits for one, that is a stage.

    A lesson may have been at hand from an earlier reflection than the last that
    wrote it. The chain may then be longer than it had to be, but never than the run.

    Args:
        records: The service's log.
        task: What the service knew.
    """
    index = QuestionIndex([question.text for question in task.questions], task.lessons)
    found = [_read(record, index) for record in records]
    first: dict[str, float] = {}
    for record, one in zip(records, found, strict=True):
        if one.prompt is not None:
            first[one.prompt] = min(record.arrived, first.get(one.prompt, record.arrived))
    asking: dict[int, list[int]] = {}
    for position, one in enumerate(found):
        if one.asked is not None:
            asking.setdefault(one.asked, []).append(position)
    writing = [position for position, one in enumerate(found) if one.written]
    known: dict[tuple[float, frozenset[int], frozenset[str]], tuple[int, ...]] = {}
    calls = []
    for record, one in zip(records, found, strict=True):
        since = record.arrived if one.prompt is None else first[one.prompt]
        place = (since, one.shown, one.read)
        if place not in known:
            known[place] = (
                *_rollouts(records, asking, one.shown, since),
                *(at for at in writing if records[at].ended <= since and found[at].written & one.read),
            )
        calls.append(Call(record.arrived, record.ended, record.seconds, needs=known[place]))
    return in_stages(calls)


def _rollouts(
    records: Sequence[CallRecord], asking: dict[int, list[int]], shown: frozenset[int], since: float
) -> list[int]:
    needed = []
    for question in sorted(shown):
        ended = [at for at in asking.get(question, ()) if records[at].ended <= since]
        if ended:
            needed.append(max(ended, key=lambda at: records[at].ended))
    return needed


def _read(record: CallRecord, index: QuestionIndex) -> _Read:
    *before, last = record.messages or (None,)
    scans = [index.scan(message.text) for message in before if message is not None]
    final = index.scan(last.text) if last is not None else index.scan("")
    shown = {hit.question for scan in scans for hit in scan.hits}
    read = {key for scan in (*scans, final) for _, key in scan.keys}
    if record.kind is Kind.TASK:
        # The rollout's own question comes last.
        asked = final.hits[-1].question if final.hits else None
        prompt = "\0".join(f"{message.role}\0{message.text}" for message in before if message is not None)
        shown |= {hit.question for hit in final.hits[:-1]}
        return _Read(prompt, asked, frozenset(shown), frozenset(read), frozenset())
    shown |= {hit.question for hit in final.hits}
    written = {key for _, key in index.scan(record.text).keys} if record.kind is Kind.REFLECT else ()
    return _Read(None, None, frozenset(shown), frozenset(read), frozenset(written))
