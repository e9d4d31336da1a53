"""A playbook run on disk: one JSON file, replaced whole after each iteration."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from combee_dspy.artifacts import Playbook
from combee_dspy.exceptions import ArgumentError, ArgumentValueError

__all__ = ["FILE", "PlaybookState", "Validated", "read_state", "write_state"]

FILE = "playbook_run.json"
_GEPA = "gepa_state.bin"
_VERSION = 1
_REMEDY = "Resume a run of your own with the same inputs, or give an empty directory."


@dataclass(frozen=True, slots=True)
class Validated:
    """One validation.

    Attributes:
        iteration: After which iteration; 0 for the student.
        score: Mean validation score.
        playbook: What was validated.
    """

    iteration: int
    score: float
    playbook: Playbook


@dataclass(slots=True)
class PlaybookState:
    """What a playbook run knows besides what it shares with every run.

    Attributes:
        playbook: As of the last finished iteration.
        before: As of the one before it: what a stale minibatch sees; ``None`` for the same.
        iteration: Iterations finished.
        rollouts: Rollouts bought.
        scores: ``(iteration, score)`` of every validation, in order.
        seed_score: The student's, where it was validated.
        best: The best validation so far, the earliest of equals.
        batch_scores: Mean score of each minibatch, predicted before it was learned from.
        batch_sizes: Examples of each minibatch.
        done: Deltas that changed the playbook, by kind.
        ignored: How many notes of ignored answers and deltas there were.
    """

    playbook: Playbook
    iteration: int = 0
    rollouts: int = 0
    scores: list[tuple[int, float]] = field(default_factory=list)
    seed_score: float | None = None
    best: Validated | None = None
    batch_scores: list[float] = field(default_factory=list)
    batch_sizes: list[int] = field(default_factory=list)
    done: dict[str, int] = field(default_factory=dict)
    ignored: int = 0
    before: Playbook | None = None

    @property
    def online_score(self) -> float | None:
        """Mean score of all rollouts of minibatches, each made before its example was learned from."""
        total = sum(self.batch_sizes)
        pairs = zip(self.batch_scores, self.batch_sizes, strict=True)
        return sum(score * size for score, size in pairs) / total if total else None

    def dump(self) -> dict[str, Any]:
        """Return plain JSON data."""
        best = self.best
        return {
            "playbook": self.playbook.to_dict(),
            "iteration": self.iteration,
            "rollouts": self.rollouts,
            "scores": [list(pair) for pair in self.scores],
            "seed_score": self.seed_score,
            "best": None if best is None else [best.iteration, best.score, best.playbook.to_dict()],
            "batches": [list(pair) for pair in zip(self.batch_scores, self.batch_sizes, strict=True)],
            "done": self.done,
            "ignored": self.ignored,
            "before": None if self.before is None else self.before.to_dict(),
        }

    @classmethod
    def load(cls, data: Mapping[str, Any]) -> PlaybookState:
        """Read what :meth:`dump` returned.

        Raises:
            ArgumentError: It holds no playbook.
            KeyError: Something is missing.
            TypeError: Something has another type.
            ValueError: Something has another value.
        """
        best = data["best"]
        return cls(
            playbook=Playbook.from_dict(data["playbook"]),
            iteration=int(data["iteration"]),
            rollouts=int(data["rollouts"]),
            scores=[(int(iteration), float(score)) for iteration, score in data["scores"]],
            seed_score=None if data["seed_score"] is None else float(data["seed_score"]),
            best=None if best is None else Validated(int(best[0]), float(best[1]), Playbook.from_dict(best[2])),
            batch_scores=[float(score) for score, _ in data["batches"]],
            batch_sizes=[int(size) for _, size in data["batches"]],
            done={str(name): int(count) for name, count in data["done"].items()},
            ignored=int(data["ignored"]),
            before=None if data.get("before") is None else Playbook.from_dict(data["before"]),
        )


def read_state(
    log_dir: str | os.PathLike[str] | None, identity: Mapping[str, str]
) -> tuple[PlaybookState, Mapping[str, Any]] | None:
    """Return the state of a run that ended or was killed here, and what it shares with every run.

    Args:
        log_dir: The run's directory; ``None`` for none.
        identity: What must not change across a resume.

    Returns:
        ``None`` where the directory holds no run.

    Raises:
        ArgumentValueError: It holds a run of another kind or with other inputs, or cannot be read.
    """
    if log_dir is None:
        return None
    folder = Path(log_dir)
    if (folder / _GEPA).exists():
        raise ArgumentValueError("log_dir", str(folder), "holds a run that learns instructions", _REMEDY)
    try:
        data = json.loads((folder / FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ArgumentValueError("log_dir", str(folder), f"holds an unreadable {FILE}: {error}", _REMEDY) from error
    try:
        found = data["identity"]
        changed = [name for name, value in identity.items() if found.get(name) != value]
        if not changed:
            return PlaybookState.load(data["state"]), dict(data["run"])
    except (KeyError, TypeError, ValueError, AttributeError, ArgumentError) as error:
        raise ArgumentValueError("log_dir", str(folder), f"holds an unusable {FILE}: {error}", _REMEDY) from error
    raise ArgumentValueError("log_dir", str(folder), f"holds a run with another {', '.join(changed)}", _REMEDY)


def write_state(
    log_dir: str | os.PathLike[str] | None,
    identity: Mapping[str, str],
    state: PlaybookState,
    run: Mapping[str, Any],
) -> None:
    """Write the state in one step that is never half done; does nothing without a directory."""
    if log_dir is None:
        return
    folder = Path(log_dir)
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / f"{FILE}.tmp"
    data = {"version": _VERSION, "identity": dict(identity), "state": state.dump(), "run": dict(run)}
    with partial.open("w", encoding="utf-8") as file:
        json.dump(data, file, ensure_ascii=True)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(folder / FILE)
