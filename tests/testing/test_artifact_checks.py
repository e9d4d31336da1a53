"""Each check of artifacts finds what it is for."""

from __future__ import annotations

import itertools

import pytest

from combee_dspy.artifacts import Artifact, PlaybookArtifact
from combee_dspy.testing import ConformanceError, checks_for
from combee_dspy.testing.checks import artifacts

COUNTER = itertools.count()


def artifact(show):
    methods = {"name": "test", "__doc__": "An artifact.", "show": lambda self, *given: show(*given)}
    return type("Test", (Artifact,), methods)()


def strict(instruction, learned):
    if "[" in learned:
        raise ValueError("not mine")
    return instruction


class Forgetful(PlaybookArtifact):
    """A playbook that cannot be read back."""

    def place(self, instruction, shown):
        """Return the text alone."""
        return f"{instruction}\n{shown}" if shown else instruction


@pytest.mark.parametrize(
    ("wrong", "check"),
    [
        (artifact(lambda one, two: f"{one}!"), artifacts.check_nothing_learned_shows_the_instruction),
        (artifact(lambda one, two: None), artifacts.check_nothing_learned_shows_the_instruction),
        (artifact(lambda one, two: f"{one}{next(COUNTER)}" if two else one), artifacts.check_the_same_is_shown_again),
        (artifact(strict), artifacts.check_any_text_may_have_been_learned),
        (Forgetful(), artifacts.check_a_playbook_is_read_back),
    ],
)
def test_a_wrong_artifact_is_found(wrong, check):
    with pytest.raises(ConformanceError):
        check(wrong)
    assert check in checks_for(wrong)


@pytest.mark.parametrize("check", artifacts.CHECKS, ids=lambda check: check.__name__)
def test_a_right_artifact_passes(check):
    check(artifact(lambda instruction, learned: learned or instruction))
    check(PlaybookArtifact(max_tokens=256))
