"""A run written through the journal alone: candidates, updates, a held-out set, hostile texts and a
key.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import closing
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


def lesson(name: str, text: str, **more: Any) -> dict[str, Any]:
    """Return a lesson of a book as a journal holds it."""
    plain = {
        "sources": [f"{name}-row"],
        "born": 0,
        "state": "served",
        "reason": "",
        "rule": "",
        "rivals": [],
    }
    return {"id": name, "text": text, **plain, "wordings": [name], **more}


CITY = lesson("a1", "Name the city.", sources=["r1", "r2"], rivals=["d4"], wordings=["a1", "b2"])
UNIT = lesson(
    "c3",
    "In tables, name the unit.",
    born=1,
    state="waiting",
    rule="a1",
    reason="one example alone",
)
RIVER = lesson(
    "d4",
    f"Name the river {HOSTILE} {KEY}",
    rivals=["a1"],
    state="retired",
    reason="9 rows are right without it",
    against=["train-0"],
    effect={"difference": -0.5, "low": -0.9, "high": 0.1, "rows": 4},
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
                try:
                    for step in steps:
                        await getattr(self, step)(log)
                finally:
                    log.close()

        asyncio.run(all_of_them())
        return self.folder

    def whole(self) -> Path:
        return self.write("begin", "first", "second", "end")

    async def begin(self, log: RunLog) -> None:
        log.emit(WarningRaised(f"validation is small {HOSTILE} {KEY}"))
        self._candidate(log, SEED, [], "seed", -1)
        await self._validate(log, SEED, 0, -1, best=True)

    async def first(self, log: RunLog) -> None:
        await self._update(log, 0, SEED, size=2, lost=1)
        self._candidate(log, CHILD, [SEED], "insert", 0)
        log.emit(CandidateScreened(CHILD, SEED, 2, 1.0, 0.5, True, "better"), step=0)
        log.emit(ChildRefused("delete", "nothing is left", SEED), step=0)
        self._learn(
            log,
            0,
            CITY,
            lesson("b2", "Say which city."),
            {**RIVER, "state": "served", "reason": ""},
        )
        await self._validate(log, CHILD, 1, 0, best=True)
        self._close(log, 0, SEED, 2)

    async def second(self, log: RunLog) -> None:
        await self._update(log, 1, CHILD, size=4, lost=0)
        self._learn(log, 1, CITY, UNIT, RIVER)
        ignored = AnswersIgnored(2, ("Unite: it relates fewer than two lessons",))
        log.emit(ignored, step=1, component="predict")
        self._candidate(log, SWAPPED, [CHILD], "few-shot-swap", 1)
        await self._validate(log, SWAPPED, 2, 1, best=True)
        self._close(log, 1, CHILD, 4)

    async def end(self, log: RunLog) -> None:
        tested = LessonTested("c3", UNIT["text"], True, 2, 4, 2, 0, accepted=True)
        log.emit(tested, step=1, component="predict")
        self._learn(log, 1, CITY, {**UNIT, "state": "served", "reason": "2 rows are better"}, RIVER)
        log.emit(RunStopped("1 epoch is done"))
        log.emit(CandidateSelected(SWAPPED, 2, "best on validation"))
        for candidate, scores in ((SEED, (0.0, 1.0, 0.0, 1.0)), (SWAPPED, (1.0, 1.0, 1.0, 0.0))):
            for row, score in enumerate(scores):
                await self._roll(log, candidate, "heldout", row, score, -1)
        rows = HeldoutIdentity("c" * 64, "d" * 64, "m" * 64, ("e" * 16,))
        read = PairedDifference(**self.heldout, confidence=0.9)
        log.emit(Receipt("read", "run 1", "2026-01-01T00:00:00+00:00", rows, difference=read))
        log.emit(HeldoutRead(**self.heldout))
        await log.finish("finished", {"best_score": 1.0, "reason": "1 epoch is done"})

    def _learn(self, log: RunLog, step: int, *lessons: dict[str, Any]) -> None:
        lines = (
            BookLine(
                **{**line, "effect": LessonEffect(**line["effect"]) if "effect" in line else None}
            )
            for line in lessons
        )
        log.emit(BookChanged(tuple(lines)), step=step, component="predict")

    def _candidate(
        self, log: RunLog, candidate: str, parents: list[str], operator: str, step: int
    ) -> None:
        event = CandidateProposed(
            candidate, TEXTS[candidate], tuple(parents), operator, ("predict",)
        )
        log.emit(event, step=step)

    async def _validate(
        self, log: RunLog, candidate: str, index: int, step: int, *, best: bool
    ) -> None:
        for row in range(4):
            await self._roll(
                log, candidate, "validation", row, float(row < 4 * SCORES[candidate]), step
            )
        event = CandidateValidated(candidate, index, SCORES[candidate], 4, best=best)
        log.emit(event, step=step)

    async def _update(self, log: RunLog, step: int, parent: str, *, size: int, lost: int) -> None:
        fit = PowerLawFit(60.0, 0.9, 0.5, 12.4) if step else None
        clamps = (Clamp("budget", 9, size, "the budget leaves no more"),)
        log.emit(BatchPlanned(size, "the ladder", fit, clamps), step=step)
        for row in range(size):
            await self._roll(log, parent, "train", row, float(row % 2), step)
        usage = (CallUsage("proposer", "openai/simulated", 1, 0, 0, 100, 20, None, None, 1.0),)
        key, value = (
            f"call/{step}/predict/read/0",
            {"fields": {"lessons": ["Round to two decimals."]}},
        )
        await log.keep(
            self._timed(
                key, "call", value, role="proposer", purpose="AddLessons", step=step, usage=usage
            )
        )
        nodes = (
            NodeOutput(1, 0, (0, 1), ("Round to two decimals.",)),
            NodeOutput(1, 1, (0, 1), (), "TimeoutError: late"),
            NodeOutput(2, 0, (0, 1), ("Round to two decimals.",)),
        )
        fates = (
            ScanReflection(0, 1.0, True, None, True),
            ScanReflection(1, 0.1, not lost, (1, 0) if lost else None, True),
        )
        lessons = (ScanLesson("Round to two decimals.", (0,)),)
        log.emit(ScanEnded("union", 2, 2, nodes, lessons, fates), step=step, component="predict")

    def _close(self, log: RunLog, step: int, parent: str, rows: int) -> None:
        log.emit(UpdateEnded(parent, ("predict",), rows, self.clock, 2.5), step=step)

    async def _roll(
        self, log: RunLog, candidate: str, purpose: str, row: int, score: float, step: int
    ) -> None:
        split = purpose if purpose in ("validation", "heldout") else "train"
        value: dict[str, Any] = {
            "prediction": {"answer": f"{purpose} {row}"},
            "feedback": f"{HOSTILE} {KEY}",
        }
        if split != "heldout":
            value["inputs"] = '{"question": "What is the net margin?"}'
            value["expected"] = '{"answer": "3"}'
        usage = (CallUsage("task", "openai/simulated", 1, 0, 0, 10, 5, 0.001, None, 0.2),)
        error = (
            {"error": "ValueError: no number", "failed_in": "program"}
            if purpose == "train" and row == 0
            else {}
        )
        key = f"rollout/{candidate}/{split}/{row}/0/{purpose}"
        await log.keep(
            self._timed(
                key,
                "rollout",
                value,
                role="task",
                purpose=purpose,
                step=step,
                candidate=candidate,
                example=f"{split}-{row}",
                split=split,
                score=score,
                usage=usage,
                **error,
            )
        )

    def _timed(self, key: str, kind: str, value: Any, **columns: Any) -> Effect:
        self.clock += 1.0
        return Effect(key, kind, value, started=self.clock - 0.5, ended=self.clock, **columns)
