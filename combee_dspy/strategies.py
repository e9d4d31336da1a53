"""What all strategies share: parameters, identity, and the context they work in."""

from __future__ import annotations

import inspect
import random
from abc import ABC
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from combee_dspy.events import Event
from combee_dspy.records import FailedCall, Role
from combee_dspy.streams import derive

if TYPE_CHECKING:
    import dspy

__all__ = ["PredictFn", "Strategy", "StrategyContext"]


class Strategy(ABC):
    """A swappable part of a run.

    The constructor stores its parameters under their own names and does
    nothing else; work happens in the verb that the kind's base declares.
    A strategy holds no state of a run, so one object may serve several runs
    and threads at once. Two strategies of one class with equal parameters
    are equal.

    Attributes:
        kind: The kind, for example ``"aggregator"``; set by the kind's base.
        name: The name it is published under; set by each class.
    """

    kind: ClassVar[str]
    name: ClassVar[str]

    def params(self) -> dict[str, Any]:
        """Return the constructor's parameters with their current values, in order.

        Raises:
            TypeError: The constructor takes ``*args`` or ``**kwargs``, or did not
                store a parameter under its own name.
        """
        values: dict[str, Any] = {}
        for parameter in inspect.signature(type(self)).parameters.values():
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                raise TypeError(f"{type(self).__name__}.__init__ must name its parameters, not take *{parameter.name}")
            if not hasattr(self, parameter.name):
                raise TypeError(f"{type(self).__name__}.__init__ must store {parameter.name!r} under that name")
            values[parameter.name] = getattr(self, parameter.name)
        return values

    def validate(self) -> None:  # noqa: B027 - most strategies have nothing to check
        """Check the parameters, before anything is spent. By default any will do.

        Raises:
            ArgumentTypeError: A parameter has a type that cannot be used.
            ArgumentValueError: A parameter is out of its range.
        """

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.params() == other.params()

    def __hash__(self) -> int:
        # Parameters may be lists; the repr of equal parameters is equal, which is all a hash needs.
        return hash((type(self), repr(self.params())))

    def __repr__(self) -> str:
        inside = ", ".join(f"{name}={value!r}" for name, value in self.params().items())
        return f"{type(self).__name__}({inside})"


class PredictFn(Protocol):
    """The only way from a strategy to an LM.

    Carries the role, the ledger, retries, concurrency and the cache. All
    inputs of one call are in flight at once, up to the run's workers.
    """

    def __call__(
        self,
        signature: type[dspy.Signature],
        inputs: Sequence[dict[str, Any]],
        *,
        role: Role = "proposer",
    ) -> Sequence[dspy.Prediction | FailedCall]:
        """Return one prediction, or the failure, per input, in the order of the inputs."""
        ...


@dataclass(frozen=True, slots=True)
class StrategyContext:
    """What a strategy may know and do.

    Attributes:
        component: Name of the component at hand, as gepa knows it.
        text: The component's current text.
        predict: The only way to an LM.
        emit: Says what happened; returns at once.
        iteration: The iteration, from 1.
        seed: The run's seed.
        place: What tells this use apart from others in the iteration.
        notes: What a proposer must know about the text besides the task, such as a token
            budget and protected rules; empty where there is nothing.
        joined_later: Whether whoever gets the lessons of a scan reads all of them in one call of
            its own: to merge the last lists in a call before that would be to write them twice.
    """

    component: str
    text: str
    predict: PredictFn
    emit: Callable[[Event], None]
    iteration: int = 1
    seed: int = 0
    place: str = ""
    notes: str = ""
    joined_later: bool = False

    def stream(self, *place: str | int) -> random.Random:
        """Return the random stream of one place in this strategy's work."""
        return derive(self.seed, self.iteration, self.component, self.place, *place)
