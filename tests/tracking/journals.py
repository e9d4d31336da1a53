"""A run written through the journal alone: candidates, updates, a held-out set, hostile texts and a
key.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar

from combee_dspy.journal import Effect, Journal, RunLog
from combee_dspy.records import CallUsage
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
        log.emit("warning", {"text": f"validation is small {HOSTILE} {KEY}"})
        self._candidate(log, SEED, [], "seed", -1)
        await self._validate(log, SEED, 0, -1, best=True)

    async def first(self, log: RunLog) -> None:
        await self._update(log, 0, SEED, size=2, lost=1)
        self._candidate(log, CHILD, [SEED], "insert", 0)
        screened = {
            "candidate": CHILD,
            "parent": SEED,
            "rows": 2,
            "score": 1.0,
            "parent_score": 0.5,
            "accepted": True,
        }
        log.emit("screened", {**screened, "reason": "better"}, step=0)
        log.emit(
            "refused", {"operator": "delete", "reason": "nothing is left", "parent": SEED}, step=0
        )
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
        log.emit(
            "void",
            {"count": 2, "reasons": ["Unite: it relates fewer than two lessons"]},
            step=1,
            component="predict",
        )
        self._candidate(log, SWAPPED, [CHILD], "few-shot-swap", 1)
        await self._validate(log, SWAPPED, 2, 1, best=True)
        self._close(log, 1, CHILD, 4)

    async def end(self, log: RunLog) -> None:
        tested = {
            "lesson": "c3",
            "text": UNIT["text"],
            "serve": True,
            "together": 2,
            "rows": 4,
            "wins": 2,
            "losses": 0,
        }
        log.emit("tested", {**tested, "accepted": True}, step=1, component="predict")
        self._learn(log, 1, CITY, {**UNIT, "state": "served", "reason": "2 rows are better"}, RIVER)
        log.emit("stopped", {"reason": "1 epoch is done"}, single=True)
        log.emit("selected", {"candidate": SWAPPED, "index": 2, "reason": "best on validation"})
        for candidate, scores in ((SEED, (0.0, 1.0, 0.0, 1.0)), (SWAPPED, (1.0, 1.0, 1.0, 0.0))):
            for row, score in enumerate(scores):
                await self._roll(log, candidate, "heldout", row, score, -1)
        log.emit("receipt", {"stage": "read", "difference": {**self.heldout, "confidence": 0.9}})
        log.emit("heldout", self.heldout, single=True)
        await log.finish("finished", {"best_score": 1.0, "reason": "1 epoch is done"})

    def _learn(self, log: RunLog, step: int, *lessons: dict[str, Any]) -> None:
        log.emit("book", {"lessons": lessons}, step=step, component="predict")

    def _candidate(
        self, log: RunLog, candidate: str, parents: list[str], operator: str, step: int
    ) -> None:
        data = {
            "candidate": candidate,
            "texts": TEXTS[candidate],
            "parents": parents,
            "operator": operator,
        }
        log.emit("candidate", {**data, "components": ["predict"]}, step=step)

    async def _validate(
        self, log: RunLog, candidate: str, index: int, step: int, *, best: bool
    ) -> None:
        for row in range(4):
            await self._roll(
                log, candidate, "validation", row, float(row < 4 * SCORES[candidate]), step
            )
        data = {
            "candidate": candidate,
            "index": index,
            "score": SCORES[candidate],
            "rows": 4,
            "best": best,
        }
        log.emit("validated", data, step=step)

    async def _update(self, log: RunLog, step: int, parent: str, *, size: int, lost: int) -> None:
        fit = {"scale": 60.0, "exponent": 0.9, "tau": 0.5, "plateau": 12.4} if step else None
        clamps = [
            {"name": "budget", "before": 9, "after": size, "reason": "the budget leaves no more"}
        ]
        log.emit(
            "batch",
            {"size": size, "reason": "the ladder", "fit": fit, "clamps": clamps},
            step=step,
            single=True,
        )
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
        nodes = [
            {
                "level": 1,
                "node": 0,
                "sources": [0, 1],
                "lessons": ["Round to two decimals."],
                "failed": None,
            },
            {
                "level": 1,
                "node": 1,
                "sources": [0, 1],
                "lessons": [],
                "failed": "TimeoutError: late",
            },
            {
                "level": 2,
                "node": 0,
                "sources": [0, 1],
                "lessons": ["Round to two decimals."],
                "failed": None,
            },
        ]
        fates = [
            {"index": 0, "coverage": 1.0, "covered": True, "lost_at": None, "measurable": True},
            {
                "index": 1,
                "coverage": 0.1,
                "covered": not lost,
                "lost_at": [1, 0] if lost else None,
                "measurable": True,
            },
        ]
        lessons = [{"text": "Round to two decimals.", "sources": [0]}]
        scan = {
            "aggregator": "union",
            "n": 2,
            "copies": 2,
            "nodes": nodes,
            "lessons": lessons,
            "retained": fates,
        }
        log.emit("scan", scan, step=step, component="predict")

    def _close(self, log: RunLog, step: int, parent: str, rows: int) -> None:
        data = {
            "parent": parent,
            "components": ["predict"],
            "rows": rows,
            "started": self.clock,
            "seconds": 2.5,
        }
        log.emit("update", {**data, "skipped": ""}, step=step, single=True)

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
