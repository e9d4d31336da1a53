"""What strategies and options share: checked parameters, identity, and their context."""

from __future__ import annotations

import functools
import inspect
import random
from abc import ABC
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast, dataclass_transform

import pydantic
from pydantic import ConfigDict, Field, ValidationError

from combee_dspy.events import Event
from combee_dspy.exceptions import (
    ArgumentError,
    ArgumentTypeError,
    ArgumentValueError,
    did_you_mean,
)
from combee_dspy.lessons import Book
from combee_dspy.records import FailedCall, Reflection, Role
from combee_dspy.streams import derive

if TYPE_CHECKING:
    import dspy

__all__ = ["AskFn", "EmitFn", "Strategy", "StrategyContext", "argument_error", "parameters"]

T = TypeVar("T")

_NOT_ITS_TYPE = frozenset(
    {
        "is_instance_of",
        "missing",
        "missing_argument",
        "unexpected_keyword_argument",
        "unexpected_positional_argument",
    }
)
_CONFIG = ConfigDict(extra="forbid", arbitrary_types_allowed=True, validate_default=False)


@dataclass_transform(frozen_default=True, eq_default=False, field_specifiers=(Field, field))
def parameters(cls: type[T]) -> type[T]:
    """Make a class a frozen set of parameters that pydantic checks when it is made.

    Ranges are written in the annotations (``copies: Annotated[int, Field(ge=1)] = 2``), relations
    between fields in ``__post_init__``, which may raise an :class:`ArgumentError`. What pydantic
    refuses is raised as :class:`ArgumentTypeError` or :class:`ArgumentValueError` with the
    parameter's name. ``pydantic.TypeAdapter(cls).json_schema()`` is its schema.
    """
    checked_class: Any = pydantic.dataclasses.dataclass(
        frozen=True, eq=False, repr=False, config=_CONFIG
    )(cls)
    unchecked = checked_class.__init__

    @functools.wraps(unchecked)
    def checked(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            unchecked(self, *args, **kwargs)
        except ValidationError as error:
            names = tuple(inspect.signature(checked_class).parameters)
            raise argument_error(cls.__name__, names, error, prefix=f"{cls.__name__}.") from error

    checked_class.__init__ = checked
    if not issubclass(checked_class, Strategy):
        for name in ("__eq__", "__hash__", "__repr__"):
            setattr(checked_class, name, getattr(Strategy, name))
        checked_class.params = Strategy.params
    return cast("type[T]", checked_class)


_EXAMPLES: Mapping[str, str] = {
    "BaseLM": "an LM, such as dspy.LM('openai/gpt-5')",
    "StoppingRule": "combee_dspy.Budget(rollouts=…, dollars=…), or another stopping rule",
    "bool_parsing": "True or False",
    "bool_type": "True or False",
    "callable_type": "a function",
    "finite_number": "a finite number, such as 0.5",
    "float_type": "a number, such as 0.5",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "path_type": "a path",
    "string_type": "a text",
    "tuple_type": "a list",
}


def argument_error(
    owner: str, names: Sequence[str], error: ValidationError, *, prefix: str = ""
) -> ArgumentError:
    """Return what pydantic refused first as an error of this package.

    Args:
        owner: The class or function whose help says more.
        names: Its parameters, in their order.
        error: What pydantic raised.
        prefix: Precedes the parameter's name.
    """
    first = error.errors()[0]
    cause, what, message = (first.get("ctx") or {}).get("error"), first["type"], first["msg"]
    if isinstance(cause, ArgumentError):
        return cause
    head, *rest = first["loc"] or ("",)
    if isinstance(head, int) and head < len(names):  # pydantic numbers arguments given by position
        head = names[head]
    is_type = what.endswith("_type") or what in _NOT_ITS_TYPE
    kind = ArgumentTypeError if is_type else ArgumentValueError
    known = ""
    if what == "unexpected_keyword_argument":
        known = did_you_mean(str(head), names) or f"It takes {', '.join(names)}. "
        if rest:  # the names are of what it lies in
            known = "Correct its name, or leave it out. "
    return kind(
        prefix + ".".join(map(str, (head, *rest))),
        None if what.startswith("missing") else first["input"],
        f"is refused: {message[:1].lower()}{message[1:]}",
        f"{known}{_remedy(what, first.get('ctx') or {}) or f'See help({owner}).'}",
    )


def _remedy(what: str, context: Mapping[str, object]) -> str:
    """Return what to give instead, by pydantic's type of error; empty where only help can tell."""
    if what in ("is_instance_of", "dataclass_type"):
        name = str(context.get("class") or context["class_name"])
        return f"Give {_EXAMPLES.get(name, f'{name}(…), or leave it out')}."
    if what == "literal_error":
        return f"Give one of {context['expected']}."
    if what in ("greater_than_equal", "less_than_equal"):
        most = "at most" if what == "less_than_equal" else "at least"
        return f"Give {most} {context.get('ge', context.get('le'))}."
    return _EXAMPLES.get(what, "") and f"Give {_EXAMPLES[what]}."


class Strategy(ABC):
    """A swappable part of a run.

    The constructor stores its parameters under their own names and does nothing else; work happens
    in the verb that the kind's base declares. Built-in strategies are made by :func:`parameters`; a
    plain class whose constructor stores its arguments works as well. A strategy holds no state of a
    run, so one object may serve several runs at once. Two strategies of one class with equal
    parameters are equal.

    Attributes:
        kind: The kind, for example ``"aggregator"``; set by the kind's base.
        name: The name it is published under; set by each class.
    """

    kind: ClassVar[str]
    name: ClassVar[str]

    def params(self) -> dict[str, object]:
        """Return the constructor's parameters with their current values, in order.

        Raises:
            TypeError: The constructor takes ``*args`` or ``**kwargs``, or did not
                store a parameter under its own name.
        """
        values: dict[str, object] = {}
        for parameter in inspect.signature(type(self)).parameters.values():
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                raise TypeError(
                    f"{type(self).__name__}.__init__ must name its parameters, not take"
                    f" *{parameter.name}"
                )
            if not hasattr(self, parameter.name):
                raise TypeError(
                    f"{type(self).__name__}.__init__ must store {parameter.name!r} under that name"
                )
            values[parameter.name] = getattr(self, parameter.name)
        return values

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.params() == other.params()

    def __hash__(self) -> int:
        # Parameters may be lists and dicts: their names alone can always be hashed.
        return hash((type(self), *self.params()))

    def __repr__(self) -> str:
        inside = ", ".join(f"{name}={value!r}" for name, value in self.params().items())
        return f"{type(self).__name__}({inside})"


AskFn = Callable[
    [type["dspy.Signature"], Mapping[str, object], tuple[str | int, ...], Role],
    Awaitable["dspy.Prediction | FailedCall"],
]
"""The only way from a strategy to an LM: one call, which the journal answers where it was paid for
before.

``await call(signature, inputs, place, role)`` is the answer, or why there is none after retries.
``place`` tells calls of one update apart.
"""

EmitFn = Callable[[Event], None]
"""``emit(event)`` says what happened; returns at once.

The journal keeps the event, one of :mod:`combee_dspy.events`, for this update and component.
"""


@dataclass(frozen=True, slots=True)
class StrategyContext:
    """What a strategy may know and do.

    Attributes:
        component: Name of the component at hand, as gepa knows it.
        text: The component's current text.
        call: What :meth:`ask` calls.
        update: The update, from 0.
        place: What tells this use apart from others in the update.
        notes: What a proposer must know about the text besides the task, such as a token
            budget and protected rules; empty where there is nothing.
        joined_later: Whether the operator reads all lessons of a scan in one call of its own. The
            aggregator then does not merge the last lists: that would write them twice.
        related_later: Whether the host asks for relations itself, once the book holds lessons (see
            :meth:`combee_dspy.aggregators.Aggregator.relate`). The aggregator then relates nothing.
        longest_quote: The most words in a row that a lesson may share with an example; ``None`` for
            any number.
        too_long: Estimated tokens of the shortest inputs that were longer than the proposer's model
            takes, as far as this update knows; ``None`` where all fit.
        book: What was learned about the component before, as far as this update knows; may be
            empty.
        reflections: What this component's updates read so far, where lessons are related after
            them; else empty.
    """

    component: str
    text: str
    call: AskFn
    emit: EmitFn
    update: int = 0
    seed: int = 0
    place: tuple[str | int, ...] = ()
    notes: str = ""
    joined_later: bool = False
    related_later: bool = False
    longest_quote: int | None = None
    too_long: int | None = None
    book: Book = field(default_factory=Book)
    reflections: tuple[Reflection, ...] = ()

    async def ask(
        self,
        signature: type[dspy.Signature],
        inputs: Mapping[str, object],
        *place: str | int,
        role: Role = "proposer",
    ) -> dspy.Prediction | FailedCall:
        """Ask an LM once: return its answer, or the failure of the last attempt.

        Calls of one strategy that are awaited together (``asyncio.gather``) are in flight together.

        Args:
            signature: What is asked.
            inputs: Values of its input fields.
            *place: What tells this call apart from the others that this strategy makes in this
                update.
            role: Who it is made for: chooses the LM and is named in the books.
        """
        return await self.call(signature, inputs, (self.component, *self.place, *place), role)

    def at(self, *place: str | int) -> StrategyContext:
        """Return this context for one part of the work, with calls and streams of its own."""
        return replace(self, place=(*self.place, *place))

    def stream(self, *place: str | int) -> random.Random:
        """Return the random stream of one place in this strategy's work."""
        return derive(self.seed, self.update, self.component, *self.place, *place)
