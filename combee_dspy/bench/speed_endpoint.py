"""The service that is timed, and what it, or else the client, counts of a run."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

import dspy

from combee_dspy.bench.bound import Bound, bound_of
from combee_dspy.bench.quiet import quietly
from combee_dspy.bench.speed_needs import calls_of
from combee_dspy.bench.speed_options import SpeedOptions
from combee_dspy.benchmarks import Benchmark
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.lms import SimulatedService, SimulatedTask

__all__ = ["Counted", "Endpoint", "open_endpoint"]


@dataclass(frozen=True, slots=True)
class Counted:
    """What a run asked of the service.

    Attributes:
        calls: Calls by what was asked: ``task``, ``reflect`` or ``other``.
        tokens: Prompt and completion tokens by what was asked.
        written: Completion tokens by what was asked.
        busy: Simulated seconds that slots were held, summed; ``None`` where nobody knows.
        bound: The run's own bounds; ``None`` where nobody knows.
    """

    calls: Mapping[str, int]
    tokens: Mapping[str, int]
    written: Mapping[str, int]
    busy: float | None = None
    bound: Bound | None = None


class Endpoint(Protocol):
    """Where a method's calls go."""

    task_lm: dspy.LM
    reflection_lm: dspy.LM
    reading_lm: dspy.LM
    """Answers what the held-out set asks as ``task_lm`` would."""

    def begin(self) -> None:
        """Start counting at zero."""
        ...

    def counted(self) -> Counted:
        """Return what was counted since."""
        ...


@contextmanager
def open_endpoint(options: SpeedOptions, benchmark: Benchmark, seed: int, *, timed: bool) -> Iterator[Endpoint]:
    """Give the service that a run is measured on.

    Args:
        options: What is measured.
        benchmark: The rows.
        seed: Seed of the simulated service.
        timed: Whether latencies are waited for. Held-out does not depend on them.
    """
    if options.endpoint is not None:
        yield _Remote(options)
        return
    with quietly():
        task = SimulatedTask.from_benchmark(benchmark, seed, params=options.params, base_rate=options.base_accuracy)
        task = replace(task, taught_rate=options.taught_accuracy)
        if options.lessons == "mistake":
            try:
                task = task.by_mistake()
            except ArgumentValueError as error:
                problem = f"needs numbers as answers, which {benchmark.name} lacks"
                raise ArgumentValueError("lessons", "mistake", problem, 'Give lessons="formula".') from error
    # What is not timed need not wait: the same answers, from a service of the same seed without latencies.
    with (
        SimulatedService(options.service(seed, timed=timed), task) as service,
        SimulatedService(options.service(seed, timed=False), task) as reading,
    ):
        yield _Simulated(service, reading, task, options.lm_settings)


class _Simulated:
    """The service on this machine; its own log is the truth."""

    def __init__(
        self, service: SimulatedService, reading: SimulatedService, task: SimulatedTask, settings: Mapping[str, float]
    ) -> None:
        self._service, self._reading = service, reading
        self._task = task
        self.task_lm = self.reflection_lm = service.lm(**settings)
        self.reading_lm = reading.lm(**settings)

    def begin(self) -> None:
        self._service.reset_stats()
        # A further draw is one of the same request: what another run asked before must not make it one.
        for service in (self._service, self._reading):
            service.forget_attempts()

    def counted(self) -> Counted:
        stats = self._service.stats()
        kinds = {name: tally for name, tally in stats.by_kind.items() if tally.calls}
        log = self._service.calls()
        return Counted(
            calls={name: tally.calls for name, tally in kinds.items()},
            tokens={name: tally.prompt_tokens + tally.completion_tokens for name, tally in kinds.items()},
            written={name: tally.completion_tokens for name, tally in kinds.items()},
            busy=stats.slot_busy_seconds,
            bound=bound_of(calls_of(log, self._task), stats.slots) if log else None,
        )


class _Remote:
    """A service of the user's; what its answers say they cost is counted here."""

    def __init__(self, options: SpeedOptions) -> None:
        key = "none"
        if options.api_key_env is not None:
            key = os.environ.get(options.api_key_env, "")
            if not key:
                remedy = f"Run: export {options.api_key_env}=…"
                raise ArgumentValueError("api_key_env", options.api_key_env, "is not set in the environment", remedy)
        name = str(options.model)
        model = name if name.startswith("openai/") else f"openai/{name}"
        # A call that DSPy answers from its cache takes no time: it would flatter whoever runs later.
        settings: dict[str, Any] = {"api_base": options.endpoint, "api_key": key, "cache": False, **options.lm_settings}
        self.task_lm = self.reading_lm = _CountingLM(model, **settings)
        self.reflection_lm = _CountingLM(model, **settings)

    def begin(self) -> None:
        for lm in (self.task_lm, self.reflection_lm):
            lm.usage.reset()

    def counted(self) -> Counted:
        used = {"task": self.task_lm.usage, "reflect": self.reflection_lm.usage}
        used = {name: usage for name, usage in used.items() if usage.calls}
        return Counted(
            calls={name: usage.calls for name, usage in used.items()},
            tokens={name: usage.prompt + usage.completion for name, usage in used.items()},
            written={name: usage.completion for name, usage in used.items()},
        )


class _Usage:
    """Calls and tokens, added up from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.reset()

    def reset(self) -> None:
        """Start at zero."""
        with self._lock:
            self.calls = self.prompt = self.completion = 0

    def add(self, response: Any) -> None:
        """Add one answer; one that does not say what it cost counts as a call of no tokens."""
        usage = getattr(response, "usage", None)
        with self._lock:
            self.calls += 1
            self.prompt += int(getattr(usage, "prompt_tokens", 0) or 0)
            self.completion += int(getattr(usage, "completion_tokens", 0) or 0)


class _CountingLM(dspy.LM):
    """An LM that adds up what its answers say they cost; its copies add to the same sum."""

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
