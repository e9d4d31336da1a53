"""Programs with a playbook: the candidate's texts, and a program that shows them."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import dspy

from combee_dspy.artifacts import Bullet, Playbook, PlaybookArtifact, read_text, render
from combee_dspy.engine.candidates import Candidate
from combee_dspy.engine.playbook_report import PlaybookReport
from combee_dspy.exceptions import ArgumentValueError

__all__ = ["PLAYBOOK", "PlaybookProgram"]

logger = logging.getLogger("combee_dspy")

PLAYBOOK = "::playbook"
"""Key of the playbook in a candidate whose predictors take it as an input field."""


@dataclass(frozen=True, slots=True)
class PlaybookProgram:
    """A student, taken apart into its own instructions and the playbook that it starts with.

    Attributes:
        student: The program. Not changed.
        artifact: How a playbook is shown.
        instructions: The student's own instruction by predictor, without a playbook.
        playbook: What the student came with; empty where it came without.
    """

    student: dspy.Module
    artifact: PlaybookArtifact
    instructions: dict[str, str]
    playbook: Playbook

    @classmethod
    def of(cls, student: dspy.Module, artifact: PlaybookArtifact) -> PlaybookProgram:
        """Take a student apart.

        Raises:
            ArgumentValueError: No predictor has the input field that the artifact names.
        """
        named: list[tuple[str, Any]] = list(student.named_predictors())
        starts = {name: artifact.start(predictor.signature.instructions) for name, predictor in named}
        found = [start.playbook for start in starts.values() if len(start.playbook)]
        if artifact.field is not None:
            holders = [name for name, predictor in named if artifact.field in predictor.signature.input_fields]
            if not holders:
                remedy = "Name an input field of one of the program's predictors, or leave it out."
                raise ArgumentValueError("field", artifact.field, "is no input field of the program", remedy)
            found += _held(named, artifact)
        playbook = _whole(student, found[0], artifact) if found else Playbook((), tuple(artifact.sections))
        return cls(student, artifact, {name: start.instruction for name, start in starts.items()}, playbook)

    @property
    def task(self) -> str:
        """What the program is told, without a playbook, for a reflector and a curator."""
        if len(self.instructions) == 1:
            return next(iter(self.instructions.values()))
        return "\n\n".join(f"{name}: {text}" for name, text in self.instructions.items())

    def shown(self, playbook: Playbook) -> tuple[Bullet, ...]:
        """Return the bullets that a predictor gets to see."""
        visible = set(render(playbook, self.artifact.max_tokens).shown)
        return tuple(bullet for bullet in playbook.bullets if bullet.id in visible)

    def candidate(self, playbook: Playbook) -> Candidate:
        """Return the texts of the program with a playbook."""
        text = render(playbook, self.artifact.max_tokens).text if len(playbook) else ""
        if self.artifact.field is not None:
            return {**self.instructions, PLAYBOOK: text}
        return {name: self.artifact.place(task, text) for name, task in self.instructions.items()}

    def build(self, candidate: Candidate) -> dspy.Module:
        """Return a fresh program with a candidate's texts."""
        program = self.student.deepcopy()
        text = candidate.get(PLAYBOOK)
        for name, predictor in program.named_predictors():
            predictor.signature = predictor.signature.with_instructions(candidate[name])
            field = self.artifact.field
            if text is not None and field is not None and field in predictor.signature.input_fields:
                predictor.signature = _with_default(predictor.signature, field, text)
                # A field's default is no part of a program's fingerprint; an attribute is.
                predictor.playbook_shown = text
        return program


def _held(named: list[tuple[str, Any]], artifact: PlaybookArtifact) -> list[Playbook]:
    """Return the playbooks that the artifact's input field holds as its default value."""
    fields = [predictor.signature.input_fields.get(artifact.field) for _, predictor in named]
    texts = [field.default for field in fields if field is not None and isinstance(field.default, str)]
    found = [artifact.taken_up(read_text(text).playbook) for text in texts]
    for text, playbook in zip(texts, found, strict=True):
        if text.strip() and not len(playbook):
            logger.warning("The default value of %r holds no bullets: the playbook takes its place.", artifact.field)
    return [playbook for playbook in found if len(playbook)]


def _whole(student: Any, standing: Playbook, artifact: PlaybookArtifact) -> Playbook:
    """Return the playbook of which a budget shows what stands in a program; what stands, where nobody noted it."""
    report = getattr(student, "playbook_report", None)
    if not isinstance(report, PlaybookReport):
        return standing
    noted = artifact.taken_up(report.playbook)
    seen = [bullet for bullet in noted.bullets if bullet.id in set(report.shown)]
    return noted if sorted(seen, key=_by_id) == sorted(standing.bullets, key=_by_id) else standing


def _by_id(bullet: Bullet) -> str:
    return bullet.id


def _with_default(signature: Any, field: str, text: str) -> Any:
    # A copy: DSPy hands out the same field objects to signatures that share them.
    found = signature.with_updated_fields(field)
    info = found.input_fields[field]
    fresh = dspy.InputField(desc=(info.json_schema_extra or {}).get("desc"), default=text)
    order = list(found.input_fields).index(field)
    return found.delete(field).insert(order, field, fresh, type_=info.annotation)
