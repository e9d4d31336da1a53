"""LMs from a configuration."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from combee_dspy.cli._config import LMConfig, RunConfig
from combee_dspy.exceptions import ArgumentValueError

if TYPE_CHECKING:
    import dspy

    from combee_dspy.benchmarks import Benchmark
    from combee_dspy.lms import SimulatedService

__all__ = ["adapter_of", "check_lm", "opened_lms"]

_PLAIN = ("api_base", "temperature", "max_tokens", "num_retries", "cache")


def check_lm(role: str, config: LMConfig, benchmark: Benchmark | None) -> None:
    """Check what can be checked of an LM without making it.

    Raises:
        ArgumentValueError: The variable that should hold its key is not set, or
            a simulated model is asked for where there is nothing it could know.
    """
    _key(role, config)
    if config.model == "simulated" and benchmark is None:
        remedy = "Give data.benchmark, or name a real model."
        raise ArgumentValueError(f"lms.{role}.model", config.model, "simulates only benchmarks", remedy)


@contextmanager
def opened_lms(config: RunConfig, benchmark: Benchmark | None) -> Iterator[dict[str, dspy.LM]]:
    """Make the LMs of a run by role; a simulated service lives as long as the context.

    Roles with the same settings share one LM.

    Raises:
        ArgumentValueError: See :func:`check_lm`.
        ServiceError: The simulated service cannot be started.
    """
    configs = {role: lm for role, lm in config.lms if lm is not None}
    for role, lm in configs.items():
        check_lm(role, lm, benchmark)
    with ExitStack() as stack:
        made: dict[str, tuple[LMConfig, dspy.LM]] = {}
        for role, wanted in configs.items():
            same = next((lm for other, lm in made.values() if other == wanted), None)
            if same is None and wanted.model == "simulated" and benchmark is not None:
                service = stack.enter_context(_service(wanted, config, benchmark))
                same = service.lm(**_arguments(wanted))
            made[role] = (wanted, same or _make(role, wanted))
        yield {role: made_lm for role, (_, made_lm) in made.items()}


def adapter_of(name: str | None, task: LMConfig) -> Any:
    """Return the DSPy adapter, or ``None`` for DSPy's own choice.

    The embedded model gets the one that constrains its answers unless another
    is named: no other works for it.
    """
    import dspy

    if name == "constrained-json" or (name is None and task.model == "embedded"):
        from combee_dspy.lms import ConstrainedJSONAdapter

        return ConstrainedJSONAdapter()
    adapters = {"chat": dspy.ChatAdapter, "json": dspy.JSONAdapter, "xml": dspy.XMLAdapter}
    return None if name is None else adapters[name]()


def _arguments(config: LMConfig) -> dict[str, Any]:
    plain = {name: value for name in _PLAIN if (value := getattr(config, name)) is not None}
    return {**plain, **config.options}


def _make(role: str, config: LMConfig) -> dspy.LM:
    import dspy

    kwargs = _arguments(config)
    if config.model == "embedded":
        from combee_dspy.lms import embedded_lm

        return embedded_lm(**kwargs, **({} if config.slots is None else {"slots": config.slots}))
    key = _key(role, config)
    return dspy.LM(config.model, **kwargs, **({} if key is None else {"api_key": key}))


def _service(lm: LMConfig, config: RunConfig, benchmark: Benchmark) -> SimulatedService:
    """Return a service that can know what a benchmark asks."""
    from combee_dspy.lms import SimulatedConfig, SimulatedService, SimulatedTask

    params = None if config.data.benchmark is None else config.data.benchmark.params
    task = SimulatedTask.from_benchmark(benchmark, config.seed, params=params)
    settings: dict[str, Any] = {"seed": config.seed, "slots": lm.slots, "time_scale": lm.time_scale}
    return SimulatedService(SimulatedConfig(**{k: v for k, v in settings.items() if v is not None}), task)


def _key(role: str, config: LMConfig) -> str | None:
    if config.api_key_env is None:
        return None
    key = os.environ.get(config.api_key_env)
    if not key:
        problem, remedy = "names a variable that is not set", f"Set it, for example: export {config.api_key_env}=…"
        raise ArgumentValueError(f"lms.{role}.api_key_env", config.api_key_env, problem, remedy)
    return key
