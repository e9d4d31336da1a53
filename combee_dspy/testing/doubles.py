"""Stand-ins for what a run gives a strategy, and material to give it."""

from __future__ import annotations

import asyncio
import hashlib
import json
import types
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, Literal, Union, get_args, get_origin
from unittest import mock

import dspy
import pydantic
from dspy.lm15 import Message, Request, Response, TextPart, Usage

from combee_dspy.events import Event
from combee_dspy.operators import OperatorInput
from combee_dspy.records import (
    Demonstration,
    FailedCall,
    Lesson,
    Lessons,
    PredictorRun,
    Reflection,
    Role,
)
from combee_dspy.strategies import StrategyContext
from combee_dspy.testing._kit import expect


@dataclass(frozen=True, slots=True)
class ScriptedRequest:
    """One request, as text.

    Attributes:
        system: The system message.
        messages: ``(role, text)`` of the others, in order; parts that are no text stand as
            ``<kind>``.
        temperature: What the request asks for; ``None`` for the service's own.
    """

    system: str
    messages: tuple[tuple[str, str], ...]
    temperature: float | None = None

    @property
    def last(self) -> str:
        """Text of the last message."""
        return self.messages[-1][1]

    @property
    def text(self) -> str:
        """Everything, in order."""
        return "\n".join([self.system, *(text for _, text in self.messages)])


def as_chat(fields: Mapping[str, object]) -> str:
    """Write output fields the way DSPy's ``ChatAdapter`` reads them."""
    parts = [f"[[ ## {name} ## ]]\n{value}" for name, value in fields.items()]
    return "\n\n".join([*parts, "[[ ## completed ## ]]"])


def as_json(fields: Mapping[str, object]) -> str:
    """Write output fields the way DSPy's ``JSONAdapter`` reads them."""
    return json.dumps(dict(fields))


class _ScriptedEngine:
    def __init__(self, answer: Callable[[ScriptedRequest], str]) -> None:
        self._answer = answer
        self.requests: list[ScriptedRequest] = []

    def complete(self, request: Request) -> Response:
        messages = tuple((message.role, _text(message.parts)) for message in request.messages)
        seen = ScriptedRequest(_text(request.system), messages, request.config.temperature)
        self.requests.append(seen)
        answer = self._answer(seen)
        prompt, completion = len(seen.text.split()), len(answer.split())
        usage = Usage(
            input_tokens=prompt, output_tokens=completion, total_tokens=prompt + completion
        )
        message = Message.assistant([TextPart(answer)])
        return Response(
            id=None, model=request.model, message=message, finish_reason="stop", usage=usage
        )


class _AsyncScriptedEngine:
    def __init__(self, engine: _ScriptedEngine) -> None:
        self._engine = engine

    async def complete(self, request: Request) -> Response:
        return self._engine.complete(request)


def _text(value: Any) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    return "".join(
        part.text if isinstance(part, TextPart) else f"<{type(part).__name__}>" for part in value
    )


class ScriptedLM(dspy.LM):
    """An LM that answers from a function and remembers what it was asked.

    Thread-safe as far as ``answer`` is. Usage counts words. Nothing is cached.

    Example:
        >>> import dspy
        >>> from combee_dspy.testing import ScriptedLM, as_chat
        >>> lm = ScriptedLM(lambda request: as_chat({"answer": "42"}))
        >>> with dspy.context(lm=lm, adapter=dspy.ChatAdapter()):
        ...     dspy.Predict("question -> answer")(question="What is 6 times 7?").answer
        '42'

    Args:
        answer: From the request to the raw answer; see :func:`as_chat` and :func:`as_json`.
        model: The model's name.
        **kwargs: As for ``dspy.LM``.
    """

    def __init__(
        self,
        answer: Callable[[ScriptedRequest], str],
        model: str = "scripted/double",
        **kwargs: object,
    ) -> None:
        self.script = _ScriptedEngine(answer)
        engines = {"engine": self.script, "async_engine": _AsyncScriptedEngine(self.script)}
        super().__init__(model, **engines, **{"cache": False, **kwargs})

    @property
    def requests(self) -> tuple[ScriptedRequest, ...]:
        """What was asked so far, in order of arrival."""
        return tuple(self.script.requests)


@dataclass(frozen=True, slots=True)
class AskCall:
    """One LM call as a strategy asked for it.

    Attributes:
        index: Its number, from 0, in order of asking.
        signature: The signature class.
        inputs: The input fields.
        place: What tells it apart from the strategy's other calls.
        role: The role named.
    """

    index: int
    signature: type[dspy.Signature]
    inputs: Mapping[str, object]
    place: tuple[str | int, ...]
    role: Role


class ScriptedAsk:
    """The way to an LM, without one.

    It fabricates a value of the right type for every output field, the same for the same
    signature and inputs, and remembers every call.

    Example:
        >>> import asyncio, dspy
        >>> from combee_dspy.testing import ScriptedAsk
        >>> ask = ScriptedAsk(fail=lambda call: call.index == 0)
        >>> signature = dspy.Signature("question -> answer")
        >>> asyncio.run(ask(signature, {"question": "?"}, (), "proposer")).error
        'ScriptedFailure: told to fail'

    Args:
        fail: Which calls fail, as after all retries; none by default.
        empty: Whether to answer with empty values, as a lazy LM does.
    """

    def __init__(
        self, *, fail: Callable[[AskCall], bool] | None = None, empty: bool = False
    ) -> None:
        self._fail = fail
        self._empty = empty
        self.calls: list[AskCall] = []

    async def __call__(
        self,
        signature: type[dspy.Signature],
        inputs: Mapping[str, object],
        place: tuple[str | int, ...],
        role: Role,
    ) -> dspy.Prediction | FailedCall:
        """Return a fabricated prediction, or a failure, after the other coroutines' turn."""
        call = AskCall(len(self.calls), signature, dict(inputs), place, role)
        self.calls.append(call)
        await asyncio.sleep(0)
        if self._fail is not None and self._fail(call):
            return FailedCall("ScriptedFailure: told to fail")
        answers = {}
        for name, field in signature.output_fields.items():
            question = (
                f"{signature.__name__}|{name}|{sorted(inputs.items(), key=lambda item: item[0])!r}"
            )
            digest = hashlib.blake2b(question.encode(), digest_size=4).hexdigest()
            answers[name] = _fabricate(field.annotation, f"{name} {digest}", self._empty)
        return dspy.Prediction(**answers)


def _fabricate(annotation: Any, text: str, empty: bool) -> Any:
    """Return a value of a type, whatever bounds its metadata sets; text where any value will do."""
    kind, args = get_origin(annotation) or annotation, get_args(annotation)
    if kind is Literal:
        return args[0]
    if kind in (Annotated, Union, types.UnionType):
        return _fabricate(next(arg for arg in args if arg is not types.NoneType), text, empty)
    if kind in (bool, int, float):
        return kind(not empty)
    is_plain = kind in (Any, object) or not isinstance(kind, type) or issubclass(kind, str)
    return ("" if empty else text) if is_plain else _fabricate_whole(kind, args, text, empty)


def _fabricate_whole(kind: type, args: tuple[Any, ...], text: str, empty: bool) -> Any:
    """Return a value of a type that holds others: an enum, a model, a mapping or a collection."""
    if issubclass(kind, Enum):
        return next(iter(kind))
    if issubclass(kind, pydantic.BaseModel):
        fields = kind.model_fields.items()
        values = {name: _fabricate(field.annotation, text, empty) for name, field in fields}
        return kind.model_construct(**values)
    if issubclass(kind, Mapping):
        return {} if empty else {"key": _fabricate(args[1] if args else str, text, empty)}
    if kind is tuple and args and args[-1] is not Ellipsis:
        return tuple(_fabricate(arg, text, empty) for arg in args)
    inner, numbers = args[0] if args else str, () if empty else (1, 2)
    items = [_fabricate(inner, f"{text} {number}", empty) for number in numbers]
    if kind in (tuple, frozenset):
        return kind(items)
    return set(items) if issubclass(kind, Set) else items


def context(
    ask: ScriptedAsk | None = None, *, events: list[Event] | None = None, seed: int = 7
) -> StrategyContext:
    """Return the context of a strategy at work on a component named ``"answer"``.

    Args:
        ask: The double to call; a fresh one by default.
        events: Where emitted events go.
        seed: The run's seed.
    """
    emitted: list[Event] = [] if events is None else events
    return StrategyContext(
        "answer", "Answer the question.", ask or ScriptedAsk(), emitted.append, update=1, seed=seed
    )


def reflections(count: int) -> tuple[Reflection, ...]:
    """Return ``count`` different reflections, with real ``dict`` records."""
    return tuple(
        Reflection(
            index=number,
            record={
                "Inputs": {"question": f"What is {number} times 7?"},
                "Generated Outputs": {"answer": f"{number * 7 + number % 2}"},
                "Feedback": (
                    "Correct." if number % 2 == 0 else f"Off by one: the answer is {number * 7}."
                ),
            },
            example_id=f"{number:064x}",
        )
        for number in range(count)
    )


def arriving(
    outcomes: Sequence[Reflection | Exception | None], order: Sequence[int] = ()
) -> list[asyncio.Future[Reflection | None]]:
    """Return awaitables that finish one a turn of the event loop; exceptions are raised.

    Args:
        outcomes: What each position gets.
        order: Positions in the order of arrival; their own order by default.
    """
    loop = asyncio.get_running_loop()
    futures: list[asyncio.Future[Reflection | None]] = [loop.create_future() for _ in outcomes]

    def arrive(left: Iterator[int]) -> None:
        if (number := next(left, None)) is None:
            return
        value, future = outcomes[number], futures[number]
        if isinstance(value, Exception):
            future.set_exception(value)
            future.exception()  # told apart from one that nobody has looked at
        else:
            future.set_result(value)
        loop.call_soon(arrive, left)

    loop.call_soon(arrive, iter(order or range(len(outcomes))))
    return futures


def operator_input(*, lessons: int = 0, runs: int = 0, demonstrations: int = 0) -> OperatorInput:
    """Return an operator's input with lessons, rollouts (every third failed) and demonstrations."""
    return OperatorInput(
        instruction="Answer the question.",
        demonstrations=tuple(
            Demonstration(
                {"question": f"What is {n} plus 1?"}, {"answer": str(n + 1)}, f"d{n:063x}"
            )
            for n in range(demonstrations)
        ),
        signature=dspy.Signature("question -> answer", "Answer the question."),
        lessons=Lessons(
            "answer", tuple(Lesson(f"Check step {n} of the sum.", (n,)) for n in range(lessons))
        ),
        runs=tuple(
            PredictorRun(
                example_id=f"{n:064x}",
                inputs={"question": f"What is {n} times 7?"},
                outputs={"answer": str(n * 7)},
                score=0.0 if n % 3 == 0 else 1.0,
            )
            for n in range(runs)
        ),
    )


@contextmanager
def watch_lms() -> Iterator[list[str]]:
    """Record, and refuse, every call that reaches a DSPy LM by another way than ``context.ask``.

    Replaces ``dspy.BaseLM.__call__`` and ``acall`` for the whole process while it is open.

    Yields:
        One description per call, filled while the context is open.
    """
    seen: list[str] = []

    def refuse(lm: Any, *_: Any, **__: Any) -> Any:
        seen.append(f"{type(lm).__name__}({getattr(lm, 'model', '?')!r})")
        raise RuntimeError("an LM was called by another way than context.ask")

    async def arefuse(lm: Any, *_: Any, **__: Any) -> Any:
        refuse(lm)

    with (
        mock.patch.multiple(dspy.BaseLM, __call__=refuse, acall=arefuse),
        dspy.context(lm=dspy.LM("combee-dspy/forbidden")),
    ):
        yield seen


def expect_calls_by_ask(work: Callable[[], Coroutine[Any, Any, Any]]) -> None:
    """Raise where a coroutine calls an LM by another way than ``context.ask``.

    Raises:
        ConformanceError: It does.
    """
    with watch_lms() as seen:
        try:
            asyncio.run(work())
        except Exception:
            # An LM that refuses may well make it raise; without such a call it must not.
            if not seen:
                raise
    mend = "replace dspy.Predict(signature)(…) by `await context.ask(signature, {…}, place…)`"
    expect(not seen, "LM calls by `context.ask` only", f"called {', '.join(seen)}", mend)
