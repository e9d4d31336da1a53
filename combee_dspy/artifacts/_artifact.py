"""The ``playbook`` artifact: what it shows, whom it asks, and how it is learned."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, get_args

import dspy

from combee_dspy.artifacts._base import Artifact
from combee_dspy.artifacts._playbook import SECTIONS, Playbook, ordered
from combee_dspy.artifacts._prompts import CurateInsights, ReflectOnTrajectory, ReflectOnTrajectoryWithTruth
from combee_dspy.artifacts._text import read_text, render, write_text
from combee_dspy.bounds import check_whole
from combee_dspy.exceptions import ArgumentValueError

__all__ = ["Mode", "PlaybookArtifact", "Signatures", "Start"]

Mode = Literal["offline", "online"]
MODES: tuple[str, ...] = get_args(Mode)

_BEGIN, _END = "=== PLAYBOOK ===", "=== END OF PLAYBOOK ==="
_HOW = "Advice from earlier tasks. Where you explain yourself, name the ids of the bullets that you follow."
_SHOWN = re.compile(rf"\n*^{_BEGIN}$\n(.*?)^{_END}$\n*", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Signatures:
    """What an artifact asks; each may be replaced by one with the same fields.

    Attributes:
        reflect: Asked about each trajectory.
        reflect_with_truth: The same with ``ground_truth``.
        curate: Asked about each shard of insights.
    """

    reflect: type[dspy.Signature] = ReflectOnTrajectory
    reflect_with_truth: type[dspy.Signature] = ReflectOnTrajectoryWithTruth
    curate: type[dspy.Signature] = CurateInsights


@dataclass(frozen=True, slots=True)
class Start:
    """An instruction taken apart.

    Attributes:
        instruction: Without a playbook.
        playbook: The one that stood in it, or an empty one.
        ignored: What of it could not be read.
    """

    instruction: str
    playbook: Playbook
    ignored: tuple[str, ...] = ()


class PlaybookArtifact(Artifact):
    """A playbook of bullets that deltas edit (ACE, arXiv 2510.04618; Combee on ACE, arXiv 2604.04247).

    Every predictor of the program reads the same playbook. It is never written anew by a model:
    deltas are applied by code, so no bullet is lost to a careless rewrite.

    Args:
        max_tokens: Estimated tokens that predictors and curator see of it. Bullets beyond that
            stay in the playbook and out of sight, the least helpful first. 8,000 is a quarter
            of a 32k context.
        sections: Its sections, the last one for what fits nowhere else. Those that a program's own
            playbook has besides stand before them.
        epochs: Passes over the trainset; with ``mode="online"`` there is one.
        mode: ``"offline"`` draws minibatches from shuffled epochs. ``"online"`` takes the
            trainset as a stream: each minibatch is predicted first, with what was learned before
            it, and learned from after.
        validate_every: Iterations between two validations. ``None`` validates the student and the
            end of each epoch, 0 never. The best on validation is returned; without any, the last.
        ground_truth: Whether the reflector sees the examples' labels.
        rounds: How often the reflector looks at a trajectory that failed; from the second time
            on it sees what it said before.
        most_bullets: Bullets that a reflector judges at most: those that the trajectory cites
            or, where it cites none, those most like it.
        similarity: Jaccard similarity of word pairs from which two bullets count as one, in (0, 1].
        leave_at: Net harm at which a bullet leaves, at least 1.
        staleness: Minibatches by which what a prediction sees may lag behind, 0 or 1. With 1 the next
            minibatch is predicted and reflected on while this one's is, with the same playbook;
            curators always see all that was learned. It takes about half the time, and no
            minibatch's rollouts have tried the lessons of the last two; with 0, of the last. Offline only.
        field: An input field that takes the playbook in place of the instruction's end. It must be
            one that the program does not fill itself: the playbook becomes its default value,
            which ``program.save`` keeps with ``save_program=True`` only.
    """

    name: ClassVar[str] = "playbook"
    signatures: ClassVar[Signatures] = Signatures()
    """What is asked. Subclasses may ask something else."""

    def __init__(  # noqa: PLR0913 - flat names are what a run's file holds; each has a default
        self,
        max_tokens: int = 8_000,
        sections: tuple[str, ...] = SECTIONS,
        epochs: int = 1,
        mode: Mode = "offline",
        validate_every: int | None = None,
        ground_truth: bool = True,
        rounds: int = 1,
        most_bullets: int = 8,
        similarity: float = 0.8,
        leave_at: int = 3,
        staleness: int = 0,
        field: str | None = None,
    ) -> None:
        self.max_tokens = max_tokens
        self.sections = sections
        self.epochs = epochs
        self.mode: Mode = mode
        self.validate_every = validate_every
        self.ground_truth = ground_truth
        self.rounds = rounds
        self.most_bullets = most_bullets
        self.similarity = similarity
        self.leave_at = leave_at
        self.staleness = staleness
        self.field = field

    def validate(self) -> None:
        """Check the parameters, before anything is spent.

        Raises:
            ArgumentTypeError: A parameter is no whole number.
            ArgumentValueError: A parameter is out of its range.
        """
        least = {"max_tokens": 64, "epochs": 1, "rounds": 1, "most_bullets": 0, "leave_at": 1, "staleness": 0}
        if self.validate_every is not None:
            least["validate_every"] = 0
        for name, bound in least.items():
            check_whole(name, getattr(self, name), bound)
        if self.mode not in MODES:
            raise ArgumentValueError("mode", self.mode, "is unknown", f"Give {' or '.join(MODES)}.")
        if self.staleness > 1:
            raise ArgumentValueError("staleness", self.staleness, "is above 1", "Give 0 or 1.")
        if self.mode == "online" and self.staleness:
            remedy = "A stream is predicted with all that was learned before: give 0."
            raise ArgumentValueError("staleness", self.staleness, "is not 0", remedy)
        if self.mode == "online" and self.epochs != 1:
            raise ArgumentValueError("epochs", self.epochs, "is not 1", "A stream passes once.")
        if not 0 < self.similarity <= 1:
            raise ArgumentValueError("similarity", self.similarity, "is not in (0, 1]", "1 joins equal bullets only.")
        Playbook((), tuple(self.sections))

    def show(self, instruction: str, learned: str) -> str:
        """Return an instruction with the playbook behind it, within the budget.

        Args:
            instruction: The student's own, without a playbook.
            learned: A playbook's text, as :meth:`dump` returns it; empty for none.
        """
        playbook = read_text(learned).playbook
        shown = render(playbook, self.max_tokens).text if len(playbook) else ""
        return self.place(instruction, shown)

    def place(self, instruction: str, shown: str) -> str:
        """Return an instruction with a rendered playbook behind it; the instruction alone where there is none."""
        if not shown:
            return instruction
        return f"{instruction}\n\n{_BEGIN}\n{_HOW}\n\n{shown}\n{_END}"

    def dump(self, playbook: Playbook) -> str:
        """Return a playbook as the text that :meth:`show` takes."""
        return write_text(playbook)

    def start(self, instruction: str) -> Start:
        """Take an instruction apart: one that a run has returned goes on with its playbook."""
        found = _SHOWN.search(instruction)
        empty = Playbook((), tuple(self.sections))
        if found is None:
            return Start(instruction, empty)
        inside = found[1].removeprefix(_HOW)
        read = read_text(inside)
        around = (instruction[: found.start()], instruction[found.end() :])
        task = "\n\n".join(part for part in around if part)
        return Start(task, self.taken_up(read.playbook), read.ignored)

    def taken_up(self, playbook: Playbook) -> Playbook:
        """Return a playbook as a run goes on with it: its order stands for that of before, the sections are its own.

        Sections that only the playbook has come first: the artifact's last one takes what fits nowhere else.
        """
        sections = (*(name for name in playbook.sections if name not in self.sections), *self.sections)
        placed = (replace(bullet, place=place) for place, bullet in enumerate(playbook.bullets))
        return ordered(placed, sections)

    def signature(self) -> type[dspy.Signature]:
        """Return what the reflector is asked."""
        return self.signatures.reflect_with_truth if self.ground_truth else self.signatures.reflect
