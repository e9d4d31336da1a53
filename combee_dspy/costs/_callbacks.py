"""Meters among DSPy's callbacks: called for LMs alone."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import dspy
from dspy.utils.callback import BaseCallback
from dspy.utils.exceptions import LMError

if TYPE_CHECKING:
    from combee_dspy.costs._meter import Meter

_NO_LM = (dspy.Module, dspy.Adapter, dspy.Tool)


class ForLMs(list[Any]):
    """DSPy's callbacks, with a meter added where an LM is called and nowhere else.

    DSPy adds up ``settings.callbacks`` and the callbacks of the module, adapter or LM at hand
    before each call of one. Where the sum is not empty it binds arguments and looks up handlers,
    which costs as much as all else that it does for a prediction. So the sum holds the meter only
    where it has something to hear.
    """

    def __init__(self, others: Iterable[BaseCallback], meters: Sequence[Meter]) -> None:
        super().__init__(others)
        self.meters = meters

    def __add__(self, own: Any) -> Any:
        callbacks = [*self, *own]
        # Where DSPy does not call it `instance`, the meter hears all there is, which only takes
        # longer.
        instance = sys._getframe(1).f_locals.get("instance")
        return callbacks if isinstance(instance, _NO_LM) else [*callbacks, *self.meters]


def count_failed(error: LMError) -> None:
    """Say how an attempt of the LM call that is active here has ended."""
    for meter in meters_in(dspy.settings.callbacks):
        meter.fail(error)


def count_repeated() -> None:
    """Say that the LM call that is active here is tried again: what failed is a call, and an error,
    of its own.
    """
    for meter in meters_in(dspy.settings.callbacks):
        meter.repeat()


def without_callbacks(left_out: Callable[[BaseCallback], bool]) -> list[BaseCallback]:
    """Return DSPy's callbacks without some. Meters stay, which a plain copy of them would lose."""
    callbacks = dspy.settings.callbacks
    others = [callback for callback in callbacks if not left_out(callback)]
    return ForLMs(others, meters_in(callbacks))


def meters_in(callbacks: list[BaseCallback]) -> Sequence[Meter]:
    """Return the meters that DSPy's callbacks hold beside what they list."""
    return callbacks.meters if isinstance(callbacks, ForLMs) else ()
