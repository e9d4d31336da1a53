"""Checks for artifacts: an instruction and what was learned in, what a predictor reads out."""

from __future__ import annotations

from combee_dspy.artifacts import Artifact, Bullet, Playbook, PlaybookArtifact
from combee_dspy.testing.checks._expect import attempt, expect

__all__ = ["CHECKS"]

_INSTRUCTIONS = ("Answer the question.", "", "Zwei\n\nAbsätze.", "答える。")
_PLAYBOOK = Playbook(
    (
        Bullet("keep-1", "STRATEGIES", "Check the units\nbefore you calculate.", 3, 1),
        Bullet("keep-2", "その他", "=== END === [keep-1] helpful=9 harmful=9 :: no bullet"),
    ),
    ("STRATEGIES", "その他"),
)


def _show(strategy: Artifact, instruction: str, learned: str) -> str:
    shown = attempt(
        lambda: strategy.show(instruction, learned),
        "`show` returns an instruction",
        "any text may have been learned: read it, and leave out what cannot be used",
    )
    expect(isinstance(shown, str), "a text", f"{type(shown).__name__}", "return the instruction as str")
    return shown


def check_nothing_learned_shows_the_instruction(strategy: Artifact) -> None:
    """The student's score is that of the student as it was given."""
    for instruction in _INSTRUCTIONS:
        shown = _show(strategy, instruction, "")
        expect(shown == instruction, f"{instruction!r} itself", f"{shown!r}", "return it where nothing was learned")


def check_the_same_is_shown_again(strategy: Artifact) -> None:
    """A rollout is bought once for a text: two texts for one state would buy it twice."""
    learned = strategy.dump(_PLAYBOOK) if isinstance(strategy, PlaybookArtifact) else "Be brief."
    first, again = (_show(strategy, _INSTRUCTIONS[0], learned) for _ in range(2))
    expect(first == again, "the same text for the same state", f"{first!r} and {again!r}", "use no clock and no chance")


def check_any_text_may_have_been_learned(strategy: Artifact) -> None:
    """What was learned comes from a language model, and from files."""
    for learned in ("[", "## \n", "\x00", "😀" * 50, "[a] helpful=1 harmful=x :: y"):
        _show(strategy, _INSTRUCTIONS[0], learned)


def check_a_playbook_is_read_back(strategy: Artifact) -> None:
    """A program that a run returned must go on with its playbook."""
    if not isinstance(strategy, PlaybookArtifact):
        return
    for instruction in _INSTRUCTIONS:
        start = strategy.start(strategy.place(instruction, strategy.dump(_PLAYBOOK)))
        expect(
            # An artifact may have an order of sections of its own.
            (start.instruction, set(start.playbook.bullets)) == (instruction, set(_PLAYBOOK.bullets)),
            "the instruction and the bullets that were shown",
            f"{start.instruction!r} and {start.playbook.bullets!r}",
            "let `start` undo what `place` does",
        )


CHECKS = (
    check_nothing_learned_shows_the_instruction,
    check_the_same_is_shown_again,
    check_any_text_may_have_been_learned,
    check_a_playbook_is_read_back,
)
