"""Each general check passes a right strategy and fails a wrong one, with a message that teaches."""

from __future__ import annotations

import threading
from typing import ClassVar

import pytest

from combee_dspy.controllers import BatchController, Static
from combee_dspy.exceptions import ArgumentTypeError, ArgumentValueError
from combee_dspy.records import BatchDecision
from combee_dspy.registry import KINDS
from combee_dspy.testing import ConformanceError, _kit, checks_for, parametrize_checks
from combee_dspy.testing.checks import general


class Right(BatchController):
    """Half of the trainset.

    Args:
        share: Part of the trainset, from 0 to 1.
        inner: Another controller, or ``None``.
    """

    name: ClassVar[str] = "right"

    def __init__(self, share=0.5, inner=None):
        self.share = share
        self.inner = inner

    def plan(self, view):
        size = max(1, int(view.trainset_size * self.share))
        if view.remaining_rollouts is not None:
            size = max(1, min(size, view.remaining_rollouts))
        return BatchDecision(size, f"{self.share} of the trainset")


class Slotted(Right):
    """Stores in slots.

    Args:
        share: Part of the trainset.
    """

    __slots__ = ("other",)

    def __init__(self, share=0.5):
        self.share = share
        self.inner = None


class Loose(Right):
    """Takes anything."""

    def __init__(self, **params):
        self.share = params.get("share", 0.5)


class Converts(Right):
    """Converts.

    Args:
        share: Part of the trainset.
    """

    def __init__(self, share=0.5):
        self.share = str(share)


class Validates(Right):
    """Validates.

    Args:
        share: Part of the trainset.
    """

    def __init__(self, share=0.5):
        if not 0 < share < 1:
            raise ValueError("share")
        self.share = share


class Counts(Right):
    """Keeps state of a run.

    Args:
        share: Part of the trainset.
    """

    def __init__(self, share=0.5):
        self.share = share
        self.calls = 0


class Renames(Right):
    """Stores under another name.

    Args:
        share: Part of the trainset.
    """

    def __init__(self, share=0.5):
        self.part = share


class Nameless(Right):
    """Has a name that no entry point can have."""

    name: ClassVar[str] = "Name Less"


class Undocumented(Right):
    pass


class SilentOnParameters(Right):
    """Half of the trainset."""


class RaisesUnsaid(Right):
    """Raises and does not say so.

    Args:
        share: Part of the trainset.
        inner: Another controller.
    """

    def plan(self, view):
        """Return a size."""
        raise ValueError("no")


class Unequal(Right):
    """Never equal to a copy.

    Args:
        share: Part of the trainset.
        inner: Another controller.
    """

    __hash__ = None

    def __eq__(self, other):
        return self is other


class NamesAnother(Right):
    """Refuses, and names something else.

    Args:
        share: Part of the trainset.
        inner: Another controller.
    """

    def validate(self):
        """Check the parameters.

        Raises:
            ArgumentValueError: ``share`` is no share.
        """
        if not 0 < self.share < 1:
            raise ArgumentValueError("size", self.share, "is no share", "Give 0.5.")


class BareError(Right):
    """Refuses with an error that names nothing.

    Args:
        share: Part of the trainset.
        inner: Another controller.
    """

    def validate(self):
        """Check the parameters.

        Raises:
            ValueError: ``share`` is no share.
        """
        if not 0 < self.share < 1:
            raise ValueError("bad value")


def only(check):
    return next(c for c in general.CHECKS if c.__name__ == check)


@pytest.mark.parametrize("check", general.CHECKS, ids=lambda c: c.__name__)
@pytest.mark.parametrize("strategy", [Right(), Right(0.25), Right(inner=Static(3, "small"))], ids=repr)
def test_right_strategies_pass(strategy, check):
    check(strategy)


WRONG = [
    (Loose(), "check_constructor_names_its_parameters", "**params"),
    (Converts(), "check_constructor_only_stores", "self.share = share"),
    (Validates(), "check_constructor_only_stores", "out of Validates.__init__"),
    (Counts(), "check_constructor_only_stores", "calls"),
    (Slotted(), "check_constructor_only_stores", "inner"),
    (Renames(), "check_constructor_only_stores", "self.share is 'missing'"),
    (Renames(), "check_spec_round_trip", "under that name"),
    (Nameless(), "check_has_a_kind_and_a_name", "'Name Less'"),
    (Undocumented(), "check_is_documented", "has none"),
    (SilentOnParameters(), "check_is_documented", "share, inner"),
    (RaisesUnsaid(), "check_is_documented", "Raises:"),
    (Right(share=object()), "check_spec_round_trip", "JSON"),
    (Right(share=float("nan")), "check_spec_round_trip", "JSON"),
    (Right(share={1: 2}), "check_spec_round_trip", "trip through JSON"),
    (Right(inner=threading.Lock()), "check_pickle", "no locks"),
    (Right(inner=threading.Lock()), "check_deepcopy", "no locks"),
    (Unequal(), "check_pickle", "came back as"),
    (Unequal(), "check_deepcopy", "became"),
    (NamesAnother(), "check_bad_parameters_are_named", "refused as 'size'"),
    (BareError(), "check_bad_parameters_are_named", "ValueError: bad value"),
]


@pytest.mark.parametrize(("strategy", "check", "says"), WRONG, ids=[f"{w[1]}-{n}" for n, w in enumerate(WRONG)])
def test_wrong_strategies_fail_with_a_message_that_teaches(strategy, check, says):
    with pytest.raises(ConformanceError) as caught:
        only(check)(strategy)
    message = str(caught.value)
    assert says in message
    for part in ("expected:", "happened:", "to mend:"):
        assert part in message
    assert caught.value.expected
    assert caught.value.happened
    assert caught.value.mend


def test_every_general_check_has_a_strategy_that_fails_it():
    assert {check.__name__ for check in general.CHECKS} == {check for _, check, _ in WRONG}


def test_a_class_without_required_parameters_stands_for_its_default_object():
    assert checks_for(Right) == checks_for(Right())


@pytest.mark.parametrize("given", [Static, "static", None, int, 3])
def test_what_is_no_strategy_is_refused(given):
    with pytest.raises(ArgumentTypeError) as caught:
        checks_for(given)
    assert caught.value.argument == "strategy"


def test_checks_have_distinct_names_within_a_kind():
    names = [check.__name__ for check in checks_for(Right())]
    assert len(set(names)) == len(names)
    assert all(name.startswith("check_") for name in names)


@parametrize_checks([Right(), Right(0.1)])
def test_the_five_line_test(strategy, check):
    check(strategy)


def test_the_marks_ids_name_class_and_check():
    mark = parametrize_checks([Right(), Right(0.1)]).mark
    ids = [parameter.id for parameter in mark.args[1]]
    assert "Right-check_pickle" in ids
    assert "Right1-check_pickle" in ids
    assert len(set(ids)) == len(ids) == 2 * len(checks_for(Right))


def test_every_kind_has_checks_of_its_own():
    assert set(_kit._BY_KIND) == set(KINDS)
    assert all(len(checks) >= 4 for checks in _kit._BY_KIND.values())
