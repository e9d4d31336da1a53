"""A run written through the journal alone: candidates, updates, a held-out set, hostile texts and a
key.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from combee_dspy.edits import LessonEffect
from combee_dspy.evaluation import HeldoutIdentity, PairedDifference, Receipt
from combee_dspy.events import (
    AnswersIgnored,
    BatchPlanned,
    BookChanged,
    BookLine,
    CandidateProposed,
    CandidateScreened,
    CandidateSelected,
    CandidateValidated,
    ChildRefused,
    HeldoutRead,
    LessonTested,
    RunStopped,
    ScanEnded,
    ScanLesson,
    ScanReflection,
    UpdateEnded,
    WarningRaised,
)
from combee_dspy.journal import Effect, Journal, RunLog
from combee_dspy.records import CallUsage, Clamp, NodeOutput, PowerLawFit
from combee_dspy.tracking import Tracker, track

KEY = "sk-" + "tracking0123456789abcdef"
HOSTILE = "</script><script>alert(1)</script><!-- \u2028 'quoted' & \x1b[2J"
BEGAN = 1_700_000_000.0
SEED, CHILD, SWAPPED = "seed000000000000", "c0ffee0000000000", "dead000000000000"
TEXTS = {
    SEED: {"predict": "Answer."},
    CHILD: {"predict": "Answer.\n\nLessons learned:\n- Round to two decimals."},
    SWAPPED: {"predict": "Answer.\n\nLessons learned:\n- Round to two decimals.\n- Name the unit."},
}
SCORES = {SEED: 0.25, CHILD: 0.5, SWAPPED: 1.0}
DESCRIPTION: dict[str, Any] = {
    "program": "Sort",
    "specs": {"aggregator": {"kind": "aggregator", "name": "union", "params": {}}, "operators": []},
    "models": {"task": "openai/simulated", "proposer": "openai/simulated"},
    "evaluator": "tests.metric #0123456789ab",
    "digests": {"train": "a" * 64},
    "sizes": {"train": 8, "validation": 4, "heldout": 4},
    "versions": {"dspy": "3.4.1"},
    "simulated": True,
    "limits": {"rollouts": 100},
    "budget": "Budget(rollouts=100)",
}


def lesson(name: str, text: str, **fields: Any) -> BookLine:
    """Return a lesson of a book, taught by one row."""
    return BookLine(name, text, **{"sources": (f"{name}-row",), "wordings": (name,), **fields})


CITY = lesson("a1", "Name the city.", sources=("r1", "r2"), rivals=("d4",), wordings=("a1", "b2"))
UNIT = lesson(
    *("c3", "In tables, name the unit."),
    born=1,
    state="waiting",
    rule="a1",
    reason="one example alone",
)
RIVER = lesson(
    *("d4", f"Name the river {HOSTILE} {KEY}"),
    rivals=("a1",),
    state="retired",
    reason="9 rows are right without it",
    against=("train-0",),
    effect=LessonEffect(-0.5, -0.9, 0.1, 4),
)


def followed(path: Path, *trackers: Tracker, body: Callable[[], object] = lambda: None) -> None:
    """Let trackers follow a run that does something, or nothing."""

    async def run() -> None:
        async with track(path, 1, trackers):
            await asyncio.sleep(0)
            body()

    asyncio.run(run())


class Story:
    """Writes a run step by step; each step may be written alone, for readers that follow."""

    heldout: ClassVar = {
        "before": 0.5,
        "after": 0.75,
        "difference": 0.25,
        "low": -0.25,
        "high": 0.75,
        "n": 4,
    }

    def __init__(self, folder: Path, name: str = "main", **description: Any) -> None:
        self.folder, self.name, self.description = folder, name, {**DESCRIPTION, **description}
        self.clock = BEGAN

    def write(self, *steps: str) -> Path:
        """Write steps in a process of their own, as it were: the journal is opened and closed."""

        async def all_of_them() -> None:
            with closing(Journal(self.folder)) as journal:
                log = journal.run(self.name, 7, {"program": "aa"}, self.description)
                with closing(log):
                    for step in steps:
                        await getattr(self, step)(log)

        asyncio.run(all_of_them())
        return self.folder

    def whole(self) -> Path:
        return self.write("begin", "first", "second", "end")

    async def begin(self, log: RunLog) -> None:
        log.emit(WarningRaised(f"validation is small {HOSTILE} {KEY}"))
        await self._child(log, -1, 0, SEED, (), "seed")

    async def first(self, log: RunLog) -> None:
        await self._update(log, 0, SEED, size=2, lost=1)
        log.emit(CandidateScreened(CHILD, SEED, 2, 1.0, 0.5, True, "better"), step=0)
        log.emit(ChildRefused("delete", "nothing is left", SEED), step=0)
        river = replace(RIVER, state="served", reason="")
        self._learn(log, 0, CITY, lesson("b2", "Say which city."), river)
        await self._child(log, 0, 1, CHILD, (SEED,), "insert")
        self._close(log, 0, SEED, 2)

    async def second(self, log: RunLog) -> None:
        await self._update(log, 1, CHILD, size=4, lost=0)
        self._learn(log, 1, CITY, UNIT, RIVER)
        ignored = AnswersIgnored(2, ("Unite: it relates fewer than two lessons",))
        log.emit(ignored, step=1, component="predict")
        await self._child(log, 1, 2, SWAPPED, (CHILD,), "few-shot-swap")
        self._close(log, 1, CHILD, 4)

    async def end(self, log: RunLog) -> None:
        tested = LessonTested("c3", UNIT.text, True, 2, 4, 2, 0, accepted=True)
        log.emit(tested, step=1, component="predict")
        self._learn(log, 1, CITY, replace(UNIT, state="served", reason="2 rows are better"), RIVER)
        log.emit(RunStopped("1 epoch is done"))
        log.emit(CandidateSelected(SWAPPED, 2, "best on validation"))
        for candidate, scores in ((SEED, (0.0, 1.0, 0.0, 1.0)), (SWAPPED, (1.0, 1.0, 1.0, 0.0))):
            await self._rolls(log, candidate, "heldout", scores, -1)
        rows = HeldoutIdentity("c" * 64, "d" * 64, "m" * 64, ("e" * 16,))
        read = PairedDifference(**self.heldout, confidence=0.9)
        log.emit(Receipt("read", "run 1", "2026-01-01T00:00:00+00:00", rows, difference=read))
        log.emit(HeldoutRead(**self.heldout))
        await log.finish("finished", {"best_score": 1.0, "reason": "1 epoch is done"})

    def _learn(self, log: RunLog, step: int, *lines: BookLine) -> None:
        log.emit(BookChanged(lines), step=step, component="predict")

    async def _child(
        self,
        log: RunLog,
        step: int,
        index: int,
        candidate: str,
        parents: tuple[str, ...],
        operator: str,
    ) -> None:
        texts, score = TEXTS[candidate], SCORES[candidate]
        log.emit(CandidateProposed(candidate, texts, parents, operator, ("predict",)), step=step)
        scores = [float(row < 4 * score) for row in range(4)]
        await self._rolls(log, candidate, "validation", scores, step)
        log.emit(CandidateValidated(candidate, index, score, 4, best=True), step=step)

    async def _update(self, log: RunLog, step: int, parent: str, *, size: int, lost: int) -> None:
        fit = PowerLawFit(60.0, 0.9, 0.5, 12.4) if step else None
        clamps = (Clamp("budget", 9, size, "the budget leaves no more"),)
        log.emit(BatchPlanned(size, "the ladder", fit, clamps), step=step)
        await self._rolls(log, parent, "train", [float(row % 2) for row in range(size)], step)
        text = "Round to two decimals."
        reader = {"role": "proposer", "purpose": "AddLessons", "step": step}
        usage = (CallUsage("proposer", "openai/simulated", 1, 0, 0, 100, 20, None, None, 1.0),)
        key, value = f"call/{step}/predict/read/0", {"fields": {"lessons": [text]}}
        await log.keep(self._timed(key, "call", value, usage=usage, **reader))
        nodes = (
            NodeOutput(1, 0, (0, 1), (text,)),
            NodeOutput(1, 1, (0, 1), (), "TimeoutError: late"),
            NodeOutput(2, 0, (0, 1), (text,)),
        )
        fates = (
            ScanReflection(0, 1.0, True, None, True),
            ScanReflection(1, 0.1, not lost, (1, 0) if lost else None, True),
        )
        scan = ScanEnded("union", 2, 2, nodes, (ScanLesson(text, (0,)),), fates)
        log.emit(scan, step=step, component="predict")

    def _close(self, log: RunLog, step: int, parent: str, rows: int) -> None:
        log.emit(UpdateEnded(parent, ("predict",), rows, self.clock, 2.5), step=step)

    async def _rolls(
        self, log: RunLog, candidate: str, purpose: str, scores: Iterable[float], step: int
    ) -> None:
        """Write rollouts in one commit, and not in one for each: it waits for the disk."""
        rolls = (
            self._roll(log, candidate, purpose, row, score, step)
            for row, score in enumerate(scores)
        )
        await asyncio.gather(*rolls)

    async def _roll(
        self, log: RunLog, candidate: str, purpose: str, row: int, score: float, step: int
    ) -> None:
        split = purpose if purpose in ("validation", "heldout") else "train"
        value = {"prediction": {"answer": f"{purpose} {row}"}, "feedback": f"{HOSTILE} {KEY}"}
        if split != "heldout":
            value["inputs"] = '{"question": "What is the net margin?"}'
            value["expected"] = '{"answer": "3"}'
        columns: dict[str, Any] = {
            "role": "task",
            "purpose": purpose,
            "step": step,
            "candidate": candidate,
            "example": f"{split}-{row}",
            "split": split,
            "score": score,
            "usage": (CallUsage("task", "openai/simulated", 1, 0, 0, 10, 5, 0.001, None, 0.2),),
        }
        if purpose == "train" and row == 0:
            columns |= {"error": "ValueError: no number", "failed_in": "program"}
        key = f"rollout/{candidate}/{split}/{row}/0/{purpose}"
        await log.keep(self._timed(key, "rollout", value, **columns))

    def _timed(self, key: str, kind: str, value: Any, **columns: Any) -> Effect:
        self.clock += 1.0
        return Effect(key, kind, value, started=self.clock - 0.5, ended=self.clock, **columns)
