"""Where the calls of what is measured go, and what each role's calls came to."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import dspy

from combee_bench.simulated import SimulatedConfig, SimulatedService, SimulatedTask, Tally
from combee_dspy.exceptions import ArgumentValueError

__all__ = ["CountingLM", "Endpoint", "model_endpoint", "model_lm", "simulated_endpoint"]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The LMs that every method is given, all on one service.

    Attributes:
        task_lm: Answers the program's calls.
        reflection_lm: Writes.
        reading_lm: Answers what the held-out set asks as ``task_lm`` would, without waiting where nothing is timed.
        time_scale: Wall seconds of one second that is reported.
        adapter: DSPy's adapter; ``None`` for its default.
        service: The simulated service; ``None`` for a model's.
        reading: The service behind ``reading_lm``, where that is another one.
    """

    task_lm: dspy.LM
    reflection_lm: dspy.LM
    reading_lm: dspy.LM
    time_scale: float = 1.0
    adapter: Any = None
    service: SimulatedService | None = None
    reading: SimulatedService | None = None

    def begin(self) -> None:
        """Start counting at zero."""
        for lm in (self.task_lm, self.reflection_lm):
            if isinstance(lm, CountingLM):
                lm.usage.reset()
        for service in (self.service, self.reading):
            if service is not None:
                service.reset_stats()
                # A further draw is one of the same request: what another run asked before must not make it one.
                service.forget_attempts()

    def counted(self) -> dict[str, Tally]:
        """Return calls and tokens since, by what was asked: ``task``, ``reflect`` or ``other``."""
        if self.service is not None:
            return {name: tally for name, tally in self.service.stats().by_kind.items() if tally.calls}
        roles = {"task": self.task_lm, "reflect": self.reflection_lm}
        return {name: lm.usage.tally for name, lm in roles.items() if isinstance(lm, CountingLM)}

    @property
    def busy_seconds(self) -> float | None:
        """Simulated seconds that slots were held since, summed; ``None`` where nobody knows."""
        return None if self.service is None else self.service.stats().slot_busy_seconds

    def settings(self) -> dict[str, Any]:
        """Return what DSPy is told while a method runs."""
        return {"lm": self.task_lm, **({} if self.adapter is None else {"adapter": self.adapter})}


@contextmanager
def simulated_endpoint(
    config: SimulatedConfig, task: SimulatedTask, *, temperature: float | None = None
) -> Iterator[Endpoint]:
    """Serve a task on this machine, and once more without latencies for what is not timed."""
    settings = {} if temperature is None else {"temperature": temperature}
    at_once = replace(config, time_scale=0.0, port=0)
    with SimulatedService(config, task) as service, SimulatedService(at_once, task) as reading:
        lm = service.lm(**settings)
        yield Endpoint(
            lm, lm, reading.lm(**settings), time_scale=config.time_scale or 1.0, service=service, reading=reading
        )


def model_endpoint(
    lm: str,
    reflection_lm: str | None = None,
    *,
    api_base: str | None = None,
    api_key_env: str | None = None,
    temperature: float | None = None,
    slots: int = 4,
) -> Endpoint:
    """Return the endpoint of a model: ``"embedded"``, or one by DSPy's name.

    Raises:
        ArgumentValueError: ``api_key_env`` is not set in the environment.
    """
    settings: dict[str, Any] = {} if temperature is None else {"temperature": temperature}
    task, adapter = model_lm(lm, slots=slots, api_base=api_base, api_key_env=api_key_env, **settings)
    writer = reflection_lm or lm
    writing, _ = model_lm(writer, slots=slots, api_base=api_base, api_key_env=api_key_env, **settings)
    return Endpoint(task, writing, task, adapter=adapter)


def model_lm(
    name: str, *, slots: int = 4, api_base: str | None = None, api_key_env: str | None = None, **settings: Any
) -> tuple[dspy.LM, Any]:
    """Return an LM that counts its calls, with the adapter that it needs or ``None``."""
    if name == "embedded":
        from combee_dspy.lms import ChoiceAdapter, embedded_lm

        # An adapter that chooses among labels where the task is a choice, and answers in JSON elsewhere.
        return embedded_lm(slots=slots), ChoiceAdapter()
    if api_base is not None:
        settings["api_base"] = api_base
    if api_key_env is not None:
        key = os.environ.get(api_key_env)
        if not key:
            remedy = f"Run: export {api_key_env}=…"
            raise ArgumentValueError("api_key_env", api_key_env, "is not set in the environment", remedy)
        settings["api_key"] = key
    # A call that DSPy answers from its cache takes no time: it would flatter whoever runs later.
    return CountingLM(name, cache=False, **settings), None


class _Usage:
    """Calls and tokens, added up from any thread. Copies of an LM add to the same sum."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.tally = Tally()

    def __deepcopy__(self, memo: Mapping[int, Any]) -> _Usage:
        return self

    def reset(self) -> None:
        with self._lock:
            self.tally = Tally()

    def add(self, response: Any) -> None:
        """Add one answer; one that does not say what it cost counts as a call of no tokens."""
        usage = getattr(response, "usage", None)
        prompt, completion = (int(getattr(usage, name, 0) or 0) for name in ("prompt_tokens", "completion_tokens"))
        with self._lock:
            self.tally += Tally(1, prompt, completion)


class CountingLM(dspy.LM):
    """An LM that adds up what its answers say they cost."""

    def __init__(self, model: str, **settings: Any) -> None:
        super().__init__(model, **settings)
        self.usage = _Usage()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Ask, and count the answer."""
        response = super().forward(*args, **kwargs)
        self.usage.add(response)
        return response

    async def aforward(self, *args: Any, **kwargs: Any) -> Any:
        """Ask, and count the answer."""
        response = await super().aforward(*args, **kwargs)
        self.usage.add(response)
        return response
