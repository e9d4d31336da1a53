"""Counts the LM calls of one rollout or request, whoever makes them and in whatever thread."""

from __future__ import annotations

import hashlib
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, TypeVar

import dspy
from dspy.utils.callback import ACTIVE_CALL_ID, BaseCallback
from dspy.utils.exceptions import LMError

from combee_dspy.costs._callbacks import ForLMs, meters_in
from combee_dspy.costs._calls import MeteredCall, may_be_charged
from combee_dspy.costs._prices import Costs, Tariff
from combee_dspy.costs._sums import merged
from combee_dspy.records import CallUsage, Role

# A setting of DSPy's: it goes where those go, into dspy.Parallel, dspy.asyncify and async tasks.
_ROLE = "combee_role"
# Another one: the role of the nearest meter that has one.
_FOR = "combee_for"
# An attribute of a program, which goes into copies of it.
_SERVES = "combee_serves"

P = TypeVar("P", bound=dspy.Module)


class CallRefusedError(SystemExit):
    """An LM call of work that was given up: nobody waits for it. Ends its thread without a word.

    It is no ``Exception``: DSPy would log it and send the call, and a program could catch it.
    """


_PART = 2047


class Meter(BaseCallback):
    """Adds up LM calls by role and model. DSPy's callback for LMs and its usage tracker in one.
    Thread-safe.

    DSPy calls the callback when a call begins and ends, and the tracker with its tokens in between;
    DSPy's id of the active call says whose they are, with any number of threads. A success without
    usage came from DSPy's cache and costs nothing. A call for several answers (``n``) is one call.
    A call that fails costs what the service reported before, usually nothing. The user's own
    ``dspy.track_usage()`` and ``track_usage=True`` get what they would get without it.

    Counted is every call under :meth:`settings`, wherever DSPy carries its settings: nested
    modules, ``dspy.Parallel``, async tasks. Not counted are calls from threads started without
    ``contextvars``, and ``lm.forward(…)`` called directly.

    Args:
        tariff: Prices of the calls.
        role: Role of calls outside of any :func:`~combee_dspy.costs.role_scope`; may be set anew
            between calls. ``None``: that of the meter around this one, else ``"serving"`` for calls
            of a program that :func:`~combee_dspy.costs.serving` has marked, else ``"task"``.

    Attributes:
        lms: LMs that were called, by identity: their keys must reach no message.
        failure: The LM error of the last call that failed, if any did.
        lose: Called for each attempt that the service may have charged for without saying how much.
    """

    def __init__(self, tariff: Tariff, role: Role | None = "task") -> None:
        self.role = role
        self.lms: dict[int, Any] = {}
        self.failure: LMError | None = None
        self.lose: Callable[[], None] = lambda: None
        self._tariff = tariff
        self._outer: Any = None
        self._open: dict[str | None, MeteredCall] = {}
        # Only ever appended to, which takes no lock.
        self._ended: list[CallUsage] = []
        self._prompts: list[int] = []
        self._closed = threading.Event()

    def __deepcopy__(self, memo: dict[int, Any]) -> Meter:
        # dspy.Parallel copies the tracker for each of its threads and drops the copies afterwards.
        return self

    def settings(self) -> dict[str, Any]:
        """Return what to give to the ``dspy.context`` in which calls are to be counted."""
        settings = dspy.settings
        context: dict[str, Any] = {
            "callbacks": ForLMs(settings.callbacks, [*meters_in(settings.callbacks), self]),
            _ROLE: None,
        }
        if self.role is not None:
            context[_FOR] = self.role
        self._outer = settings.usage_tracker
        if not settings.track_usage:
            # DSPy honours track_usage=True only where no tracker is set; each call then brings this
            # one along.
            context["usage_tracker"] = self
        return context

    def usage(self) -> tuple[CallUsage, ...]:
        """Return what has been counted so far, sorted by role and model."""
        return merged(tuple(self._ended))

    @property
    def prompt_hash(self) -> str:
        """Hash of all prompts of the program's calls, in any order: 16 hex digits; empty where
        there were none.
        """
        return f"{sum(self._prompts) % (1 << 64):016x}" if self._prompts else ""

    def close(self) -> tuple[CallUsage, ...]:
        """Refuse every later call, count each in flight as one that failed, and return what was
        counted.

        What a call in flight costs is not known: it counts as a call, with the tokens that were
        reported by now.
        """
        self._closed.set()
        with suppress(KeyError):  # the last one has ended meanwhile
            while self._open:
                call = self._open.popitem()[1]
                self._doubt(call)
                self._end(call, failed=True)
        return self.usage()

    def on_lm_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
        """Open a call.

        Raises:
            CallRefusedError: The meter is closed.
        """
        if self._closed.is_set():
            raise CallRefusedError
        settings = dspy.settings
        call = MeteredCall(self._whose(), str(getattr(instance, "model", type(instance).__name__)))
        self.lms[id(instance)] = instance
        tracker = settings.usage_tracker
        if isinstance(tracker, _Relay):
            tracker.meters |= {self}
        elif not isinstance(tracker, Meter):
            call.relay = dspy.context(usage_tracker=_Relay(self, tracker))
            call.relay.__enter__()
        self._open[call_id] = call
        if self._closed.is_set() and self._open.pop(call_id, None) is not None:
            raise CallRefusedError  # closed meanwhile, and not counted
        if call.role in ("task", "serving"):
            self._prompts.append(_digest(inputs))
        if (gpus := self._tariff.gpus.get(call.role)) is not None:
            call.gpu = gpus.change(1)
        call.started = self._tariff.clock()

    def _whose(self) -> Role:
        settings = dspy.settings
        role: Role | None = settings.get(_ROLE) or self.role or settings.get(_FOR)
        if role is not None:
            return role
        # DSPy's own list of the modules that are being called here, the outermost first.
        return (
            "serving"
            if any(_SERVES in vars(module) for module in settings.caller_modules or ())
            else "task"
        )

    def add_usage(self, lm: str, usage_entry: Mapping[str, Any]) -> None:
        """Count the tokens of the call that is active here, and pass them on to the user's own
        tracker.
        """
        self.hear(lm, usage_entry)
        if self._outer is not None:
            self._outer.add_usage(lm, usage_entry)

    def hear(self, lm: str, usage_entry: Mapping[str, Any]) -> None:
        """Count the tokens of the call that is active here."""
        call = self._open.get(ACTIVE_CALL_ID.get())
        if call is not None:
            call.add(usage_entry)
        elif not self._closed.is_set():  # an LM whose calls DSPy's callbacks do not hear
            call = MeteredCall(self._whose(), lm)
            call.add(usage_entry)
            self._count(call, 0.0, None, failed=False)

    def fail(self, error: LMError) -> None:
        """Note how an attempt of the call that is active here has ended."""
        if (call := self._open.get(ACTIVE_CALL_ID.get())) is not None and may_be_charged(error):
            self._doubt(call)

    def _doubt(self, call: MeteredCall) -> None:
        if call.in_doubt:
            call.in_doubt = False
            self.lose()

    def repeat(self) -> None:
        """Count one more attempt of the call that is active here."""
        if (call := self._open.get(ACTIVE_CALL_ID.get())) is not None:
            call.repeats += 1
            call.in_doubt = True

    def on_lm_end(self, call_id: str, outputs: Any, exception: BaseException | None = None) -> None:
        """Close a call and count it."""
        if isinstance(exception, LMError):
            self.failure = exception
        call = self._open.pop(call_id, None)
        if call is None:
            return
        if call.relay is not None:
            # A coroutine that is dropped, not finished, ends in another context: there is nothing
            # to restore there.
            with suppress(ValueError):
                call.relay.__exit__(None, None, None)
        if exception is not None and may_be_charged(exception):
            self._doubt(call)
        self._end(call, failed=exception is not None)

    def _end(self, call: MeteredCall, *, failed: bool) -> None:
        seconds, gpus = self._tariff.clock() - call.started, self._tariff.gpus.get(call.role)
        gpu_seconds = None if gpus is None else gpus.change(-1) - call.gpu
        self._count(call, seconds, gpu_seconds, failed=failed)

    def _count(
        self, call: MeteredCall, seconds: float, gpu_seconds: float | None, *, failed: bool
    ) -> None:
        cached = not call.has_usage and not failed
        dollars: float | None = 0.0
        if call.has_usage:
            price, dollars = self._tariff.price(call.model), None
            if price is not None and (call.is_exact or price.prompt == price.completion == 0):
                dollars = round(price.dollars(call.prompt, call.completion, call.prompt_cached), 12)
        if cached:
            seconds, gpu_seconds = 0.0, None if gpu_seconds is None else 0.0
        usage = CallUsage(
            call.role,
            call.model,
            1 + call.repeats,
            call.repeats + failed,
            int(cached),
            call.prompt,
            call.completion,
            dollars,
            gpu_seconds,
            seconds,
        )
        self._ended.append(usage)

    @property
    def usage_data(self) -> Any:
        """What an inner ``dspy.track_usage()`` adds to when it ends: the user's outer tracker, or
        nothing.
        """
        return self._outer.usage_data if self._outer is not None else defaultdict(list)


def _digest(inputs: Mapping[str, Any]) -> int:
    text = ""
    for message in inputs.get("messages") or ({"content": inputs.get("prompt")},):
        content = message.get("content") if isinstance(message, dict) else message
        text += f"{content if isinstance(content, str) else repr(content)}\0"
    encoded = text.encode("utf-8", "surrogatepass")
    digest = hashlib.blake2b(digest_size=8)
    # In parts too small for hashlib to let go of the GIL: with many threads it would take long to
    # get it back.
    for start in range(0, len(encoded), _PART):
        digest.update(encoded[start : start + _PART])
    return int.from_bytes(digest.digest(), "big")


class _Relay:
    """The usage tracker of one call: passes its tokens on to meters, and to the program's own
    tracker.
    """

    def __init__(self, meter: Meter, tracker: Any) -> None:
        self.meters = {meter}
        self._tracker = tracker

    def __deepcopy__(self, memo: dict[int, Any]) -> _Relay:
        return self

    def add_usage(self, lm: str, usage_entry: dict[str, Any]) -> None:
        for meter in self.meters:
            meter.hear(lm, usage_entry)
        if self._tracker is not None:
            self._tracker.add_usage(lm, usage_entry)


def role_scope(role: Role) -> AbstractContextManager[None]:
    """Name the role of every LM call made inside the ``with`` block; the innermost counts."""
    scope: AbstractContextManager[None] = dspy.context(**{_ROLE: role})
    return scope


def serving(program: P) -> P:
    """Have the LM calls of a program, and of copies of it, counted in the role ``serving``; return
    the program.

    A program that ``Combee.compile`` or ``load_candidate`` returns is marked so; one that was read
    from a saved state is not. A search that learns from such a program counts its calls as
    ``task``.
    """
    vars(program)[_SERVES] = True
    return program


@contextmanager
def metered(charged: Tariff | Costs | None = None, role: Role | None = None) -> Iterator[Meter]:
    """Count every LM call made inside the ``with`` block and in everything it calls.

    ::

        with metered(Costs(prices={"my-model": Price(0.1, 0.4)})) as meter:
            better(question="…")
        print(totals(meter.usage()).by_role["serving"].dollars)

    Args:
        charged: What calls are charged by; list prices by default.
        role: Whom they are made for; by default the role that :class:`Meter` says.
    """
    meter = Meter(charged if isinstance(charged, Tariff) else Tariff(charged), role)
    with dspy.context(**meter.settings()):
        yield meter
