"""Hearing every LM call that DSPy makes, with exactly its own usage."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from contextvars import ContextVar, Token
from typing import Any
from weakref import WeakValueDictionary

import dspy
from dspy.utils.callback import BaseCallback

from combee_dspy.costs._ledger import Ledger, LMCall
from combee_dspy.costs._roles import current_role
from combee_dspy.costs._rollout import RolloutMeter, current_meter
from combee_dspy.records import Role

__all__ = ["LedgerRecorder", "is_recorder", "ledgers_here", "lm_listeners_here"]


class LedgerRecorder:
    """Puts every LM call made under it into a ledger, whoever makes it.

    A DSPy callback opens and closes each call. For the duration of that one
    call it also stands in for DSPy's usage tracker, so the tokens it hears
    are that call's and no other's, with any number of threads. A success that
    reported no usage at all came from DSPy's cache: it is counted as cached
    and costs nothing. A call that ends with an error costs what the service
    reported before it failed, usually nothing.

    The program's own ``dspy.track_usage()`` and ``track_usage=True`` get the
    usage that they would get without the recorder. Recorders nest: each
    ledger hears every call once. A call made inside a
    :func:`combee_dspy.costs.rollout_scope` is counted in its meter too.

    Heard are calls in this context and wherever DSPy carries its settings:
    nested modules, ``dspy.Parallel``, ``acall`` in async tasks. Not heard are
    calls from threads that a program starts without ``contextvars``, and
    ``lm.forward(...)`` called directly. A program that replaces DSPy's
    callbacks in a ``dspy.context(callbacks=…)`` of its own hides the latency,
    cache hits and errors of the calls inside; their tokens are still counted.

    Args:
        ledger: Where the calls go. Its clock and prices are used.
        heard: Called with each LM when its first call begins, in the thread that makes it; must
            not raise. For who has to know every LM there is, to keep its key out of files.
    """

    def __init__(self, ledger: Ledger, heard: Callable[[Any], None] | None = None) -> None:
        self.ledger = ledger
        self.heard = heard

    @contextmanager
    def installed(self) -> Iterator[LedgerRecorder]:
        """Record in this ``with`` block and in everything it calls."""
        callbacks = list(dspy.settings.get("callbacks") or [])
        outer = next((callback for callback in callbacks if isinstance(callback, _Listener)), None)
        ledgers = outer.ledgers if outer is not None else ()
        if any(ledger is self.ledger for ledger in ledgers):
            yield self
            return
        # One listener for all ledgers: two would have to undo their work in reverse
        # order, and DSPy calls callbacks in the same order at the start and the end.
        heard = (*(outer.heard if outer is not None else ()), *((self.heard,) if self.heard is not None else ()))
        listener = _Listener((*ledgers, self.ledger), heard)
        callbacks = [callback for callback in callbacks if callback is not outer] + [listener]
        tracker = _Tracker(_users_tracker(), listener.hear, listener)
        with dspy.context(callbacks=callbacks, usage_tracker=tracker):
            yield self


def ledgers_here() -> tuple[Ledger, ...]:
    """Return the ledgers that record in this context, the outermost first."""
    listener = _listener_here()
    return () if listener is None else listener.ledgers


def lm_listeners_here() -> tuple[Callable[[Any], None], ...]:
    """Return who wants to hear of every LM that is called in this context."""
    listener = _listener_here()
    return () if listener is None else listener.heard


def is_recorder(callback: object) -> bool:
    """Tell whether a DSPy callback is one of a recorder's."""
    return isinstance(callback, _Listener)


def _listener_here() -> _Listener | None:
    return next((callback for callback in dspy.settings.get("callbacks") or [] if is_recorder(callback)), None)


class _Tracker:
    """Stands in for ``dspy.utils.usage_tracker.UsageTracker`` and passes everything on to the user's own.

    Args:
        outer: The user's tracker, if there is one.
        hear: Called with the model's name and the usage entry.
        listener: The listener that it was installed with; ``None`` for one that stands in for a single call.
    """

    __slots__ = ("_hear", "listener", "outer")

    def __init__(
        self, outer: Any, hear: Callable[[str, Mapping[str, Any]], None], listener: _Listener | None = None
    ) -> None:
        self.outer = outer
        self._hear = hear
        self.listener = listener

    def __deepcopy__(self, memo: dict[int, Any]) -> _Tracker:
        # dspy.Parallel copies the tracker for each of its threads and drops the copies afterwards.
        return self

    def add_usage(self, lm: str, usage_entry: dict[str, Any]) -> None:
        self._hear(lm, usage_entry)
        if self.outer is not None:
            self.outer.add_usage(lm, usage_entry)

    @property
    def usage_data(self) -> Any:
        # An inner dspy.track_usage() adds what it heard here when it ends. The
        # ledger has it already: it belongs to the user's outer tracker, or nowhere.
        return self.outer.usage_data if self.outer is not None else _Discard()

    def get_total_tokens(self) -> dict[str, dict[str, Any]]:
        return self.outer.get_total_tokens() if self.outer is not None else {}


class _Discard(dict[str, list[Any]]):
    def __missing__(self, key: str) -> list[Any]:
        return []


def _users_tracker() -> Any:
    tracker = dspy.settings.get("usage_tracker")
    return tracker.outer if isinstance(tracker, _Tracker) else tracker


class _Open:
    """A call in flight. Touched only by the thread or task that makes it."""

    __slots__ = (
        "books",
        "completion",
        "heard",
        "known",
        "meter",
        "model",
        "prompt",
        "prompt_cached",
        "role",
        "scope",
        "token",
    )

    def __init__(self, role: Role, model: str) -> None:
        self.meter: RolloutMeter | None = current_meter()
        # Each ledger, with what it needs for the GPU-seconds, and when its clock saw the call begin.
        self.books: list[tuple[Ledger, float, float]] = []
        self.role = role
        self.model = model
        self.heard = False
        self.known = True
        self.prompt = 0
        self.prompt_cached = 0
        self.completion = 0
        self.scope: AbstractContextManager[None] | None = None
        self.token: Token[tuple[_Listener, _Open] | None] | None = None

    def hear(self, lm: str, usage: Mapping[str, Any]) -> None:
        # Called more than once where an LM that makes n > 1 requests fails on a later one.
        self.heard = True
        prompt = _tokens(usage, "prompt_tokens", "input_tokens")
        completion = _tokens(usage, "completion_tokens", "output_tokens")
        self.known = self.known and prompt is not None and completion is not None
        self.prompt += prompt or 0
        self.completion += completion or 0
        details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details")
        if isinstance(details, Mapping):
            self.prompt_cached += _tokens(details, "cached_tokens") or 0

    def close(self, call_id: str, ledger: Ledger, seconds: float, error: str | None) -> LMCall:
        price = ledger.prices.price(self.model)
        dollars: float | None = None
        if not self.heard:
            dollars = 0.0
        elif price is not None and (self.known or price.prompt == price.completion == 0):
            dollars = price.dollars(self.prompt, self.completion, self.prompt_cached)
        cached = not self.heard and error is None
        return LMCall(call_id, self.role, self.model, self.prompt, self.completion, dollars, seconds, cached, error)


def _tokens(usage: Mapping[str, Any], *names: str) -> int | None:
    # Counts come from a server: anything that is not one is treated as not reported.
    for name in names:
        value = usage.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return value
    return None


_IN_FLIGHT: ContextVar[tuple[_Listener, _Open] | None] = ContextVar("combee_call_in_flight", default=None)


class _Listener(BaseCallback):
    """The DSPy callback. Thread-safe: each call's state belongs to whoever makes it.

    Args:
        ledgers: All ledgers that hear the calls of this context.
        heard: Called with each LM once; again where one of them failed.
    """

    def __init__(self, ledgers: tuple[Ledger, ...], heard: tuple[Callable[[Any], None], ...] = ()) -> None:
        self.ledgers = ledgers
        self.heard = heard
        # By identity: an LM need not be hashable, and one that equals another may have another key.
        self._met: WeakValueDictionary[int, Any] = WeakValueDictionary()
        self._open: dict[str, _Open] = {}
        self._modules: dict[str, AbstractContextManager[None]] = {}

    def hear(self, model: str, usage: Mapping[str, Any]) -> None:
        """Count usage: of the call in flight here, or of one of which only the usage is heard."""
        announced = _IN_FLIGHT.get()
        if announced is not None and announced[0] is self:
            announced[1].hear(model, usage)
            return
        call = _Open(current_role(), model)
        call.hear(model, usage)
        counted: LMCall | None = None
        for ledger in self.ledgers:
            gpu = ledger.begin(call.role, model)
            counted = ledger.finish(call.close("", ledger, 0.0, None), gpu)
        if call.meter is not None and counted is not None:
            call.meter.add(counted)

    def on_lm_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
        """Open a call."""
        if call_id in self._open:  # listed twice: in the settings and on the LM
            return
        call = _Open(current_role(), str(getattr(instance, "model", type(instance).__name__)))
        tracker = dspy.settings.get("usage_tracker")
        if isinstance(tracker, _Tracker) and tracker.listener is self:
            # What is installed hears it: entering a context of DSPy's costs a third of all that is done here.
            call.token = _IN_FLIGHT.set((self, call))
        else:
            call.scope = _enter(dspy.context(usage_tracker=_Tracker(_users_tracker(), call.hear)))
        self._open[call_id] = call
        if call.meter is not None and call.role == "task":
            call.meter.saw(inputs)
        call.books = [(ledger, ledger.begin(call.role, call.model), ledger.clock()) for ledger in self.ledgers]
        if self.heard and self._met.get(id(instance)) is not instance:
            # Each of them hears, though another fails, and all hear again at the next call: of an LM that is missed,
            # the key would not be kept out of what is written.
            with ExitStack() as everyone:
                for heard in reversed(self.heard):
                    everyone.callback(heard, instance)
            self._met[id(instance)] = instance

    def on_lm_end(self, call_id: str, outputs: Any, exception: BaseException | None = None) -> None:
        """Close a call and put it into the ledgers."""
        call = self._open.pop(call_id, None)
        if call is None:
            return
        _leave(call.scope)
        if call.token is not None:
            # As for a scope: a coroutine that is dropped ends in another context.
            with suppress(ValueError):
                _IN_FLIGHT.reset(call.token)
        error = type(exception).__name__ if exception is not None else None
        counted: LMCall | None = None
        for ledger, gpu, started in call.books:
            counted = ledger.finish(call.close(call_id, ledger, ledger.clock() - started, error), gpu)
        if call.meter is not None and counted is not None:
            # The last ledger is that of the innermost recorder: the rollout runs under it.
            call.meter.add(counted)

    def on_module_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
        """Step aside for ``track_usage=True``, which DSPy honours only where no tracker is set."""
        if not dspy.settings.get("track_usage"):
            return
        tracker = dspy.settings.get("usage_tracker")
        if isinstance(tracker, _Tracker) and tracker.outer is None:
            self._modules[call_id] = _enter(dspy.context(usage_tracker=None))

    def on_module_end(self, call_id: str, outputs: Any, exception: BaseException | None = None) -> None:
        """Undo :meth:`on_module_start`."""
        _leave(self._modules.pop(call_id, None))


def _enter(scope: AbstractContextManager[None]) -> AbstractContextManager[None]:
    scope.__enter__()
    return scope


def _leave(scope: AbstractContextManager[None] | None) -> None:
    if scope is None:
        return
    # A coroutine that is dropped, not finished, ends in another context: there is nothing to restore there.
    with suppress(ValueError):
        scope.__exit__(None, None, None)
