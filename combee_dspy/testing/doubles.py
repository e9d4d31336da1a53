"""Stand-ins for what a run gives a strategy, and material to give it."""

from __future__ import annotations

import asyncio
import hashlib
import types
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, Union, get_args, get_origin
from unittest import mock

import dspy

from combee_dspy.operators import OperatorInput
from combee_dspy.records import Demonstration, FailedCall, Lesson, Lessons, PredictorRun, Reflection, Role
from combee_dspy.strategies import StrategyContext
from combee_dspy.testing._expect import expect


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
    inputs: Mapping[str, Any]
    place: tuple[str | int, ...]
    role: Role


class ScriptedAsk:
    """The way to an LM, without one: answers are a function of signature and inputs.

    It fabricates a value of the right type for every output field, the same
    for the same inputs, and remembers every call.

    Args:
        fail: Which calls fail, as after all retries; none by default.
        empty: Whether to answer with empty values, as a lazy LM does.
    """

    def __init__(self, *, fail: Callable[[AskCall], bool] | None = None, empty: bool = False) -> None:
        self._fail = fail
        self._empty = empty
        self.calls: list[AskCall] = []

    async def __call__(
        self,
        signature: type[dspy.Signature],
        inputs: Mapping[str, Any],
        place: tuple[str | int, ...],
        role: Role,
    ) -> dspy.Prediction | FailedCall:
        """Return a fabricated prediction, or a failure, once the other coroutines had their turn."""
        call = AskCall(len(self.calls), signature, dict(inputs), place, role)
        self.calls.append(call)
        await asyncio.sleep(0)
        if self._fail is not None and self._fail(call):
            return FailedCall("ScriptedFailure: told to fail")
        texts = {name: f"{name} {_digest(call, name)}" for name in signature.output_fields}
        kinds = {name: field.annotation for name, field in signature.output_fields.items()}
        return dspy.Prediction(**{name: _fabricate(kinds[name], text, self._empty) for name, text in texts.items()})


def _digest(call: AskCall, field: str) -> str:
    text = f"{call.signature.__name__}|{field}|{sorted(call.inputs.items(), key=lambda item: item[0])!r}"
    return hashlib.blake2b(text.encode(), digest_size=4).hexdigest()


def _fabricate(annotation: Any, text: str, empty: bool) -> Any:
    """Return a value of a type: text, numbers, containers, ``Literal``, unions, pydantic models."""
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return args[0]
    if origin in (Union, types.UnionType):
        return _fabricate(next(arg for arg in args if arg is not type(None)), text, empty)
    if origin in (list, set, frozenset, tuple) or annotation in (list, set, frozenset, tuple):
        make = origin or annotation
        inner = args[0] if args else str
        return make() if empty else make(_fabricate(inner, f"{text} {number}", empty) for number in (1, 2))
    if origin is dict or annotation is dict:
        return {} if empty else {"key": _fabricate(args[1] if args else str, text, empty)}
    fields = getattr(annotation, "model_fields", None)
    if isinstance(fields, dict):
        return annotation(**{name: _fabricate(field.annotation, text, empty) for name, field in fields.items()})
    if annotation in (bool, int, float):
        return annotation(0 if empty else 1)
    return "" if empty else text


def context(ask: ScriptedAsk | None = None, *, events: list[Any] | None = None, seed: int = 7) -> StrategyContext:
    """Return the context of a strategy at work on a component named ``"answer"``.

    Args:
        ask: The double to call; a fresh one by default.
        events: Where emitted events go, as ``(kind, data)``.
        seed: The run's seed.
    """
    heard = [] if events is None else events
    return StrategyContext(
        component="answer",
        text="Answer the question.",
        call=ask or ScriptedAsk(),
        emit=lambda kind, **data: heard.append((kind, data)),
        update=1,
        seed=seed,
    )


def reflections(count: int) -> tuple[Reflection, ...]:
    """Return ``count`` different reflections, with real ``dict`` records that a strategy could change."""
    return tuple(
        Reflection(
            index=number,
            record={
                "Inputs": {"question": f"What is {number} times 7?"},
                "Generated Outputs": {"answer": f"{number * 7 + number % 2}"},
                "Feedback": "Correct." if number % 2 == 0 else f"Off by one: the answer is {number * 7}.",
            },
            example_id=f"{number:064x}",
        )
        for number in range(count)
    )


def arriving(
    given: Sequence[Reflection | Exception | None], order: Sequence[int] = ()
) -> list[asyncio.Future[Reflection | None]]:
    """Return awaitables that get done one a turn of the running event loop; what is an exception is raised.

    Args:
        given: What each position gets.
        order: Positions in the order of arrival; their own order by default.
    """
    loop = asyncio.get_running_loop()
    futures: list[asyncio.Future[Reflection | None]] = [loop.create_future() for _ in given]

    def arrive(left: tuple[int, ...]) -> None:
        if not left:
            return
        value, future = given[left[0]], futures[left[0]]
        if isinstance(value, Exception):
            future.set_exception(value)
            future.exception()  # told apart from one that nobody has looked at
        else:
            future.set_result(value)
        loop.call_soon(arrive, left[1:])

    loop.call_soon(arrive, tuple(order) or tuple(range(len(given))))
    return futures


def operator_input(*, lessons: int = 0, runs: int = 0, demonstrations: int = 0) -> OperatorInput:
    """Return an operator's input with so many lessons, rollouts (every third failed) and demonstrations."""
    return OperatorInput(
        instruction="Answer the question.",
        demonstrations=tuple(
            Demonstration({"question": f"What is {n} plus 1?"}, {"answer": str(n + 1)}, f"d{n:063x}")
            for n in range(demonstrations)
        ),
        signature=dspy.Signature("question -> answer", "Answer the question."),
        lessons=Lessons("answer", tuple(Lesson(f"Check step {n} of the sum.", (n,)) for n in range(lessons))),
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

    async def arefuse(lm: Any, *args: Any, **kwargs: Any) -> Any:
        return refuse(lm, *args, **kwargs)

    with (
        mock.patch.object(dspy.BaseLM, "__call__", refuse),
        mock.patch.object(dspy.BaseLM, "acall", arefuse),
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
