"""LMs from a configuration."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from combee_dspy.cli._config import LMConfig
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
def opened_lms(configs: Mapping[str, LMConfig], benchmark: Benchmark | None, seed: int) -> Iterator[dict[str, dspy.LM]]:
    """Make the LMs by role; a simulated service lives as long as the context.

    Roles with the same settings share one LM.

    Raises:
        ArgumentValueError: See :func:`check_lm`.
        ServiceError: The simulated service cannot be started.
    """
    for role, config in configs.items():
        check_lm(role, config, benchmark)
    with ExitStack() as stack:
        made: dict[str, tuple[LMConfig, dspy.LM]] = {}
        for role, config in configs.items():
            same = next((lm for other, lm in made.values() if other == config), None)
            made[role] = (config, same or _make(role, config, benchmark, seed, stack))
        yield {role: lm for role, (_, lm) in made.items()}


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


def _make(role: str, config: LMConfig, benchmark: Benchmark | None, seed: int, stack: ExitStack) -> dspy.LM:
    import dspy

    kwargs: dict[str, Any] = {name: value for name in _PLAIN if (value := getattr(config, name)) is not None}
    kwargs.update(config.options)
    if config.model == "embedded":
        from combee_dspy.lms import embedded_lm

        return embedded_lm(**kwargs, **({} if config.slots is None else {"slots": config.slots}))
    if config.model == "simulated" and benchmark is not None:
        return stack.enter_context(_service(config, benchmark, seed)).lm(**kwargs)
    key = _key(role, config)
    return dspy.LM(config.model, **kwargs, **({} if key is None else {"api_key": key}))


def _service(config: LMConfig, benchmark: Benchmark, seed: int) -> SimulatedService:
    """Return a service that can know what a benchmark asks: a lesson for each label."""
    from combee_dspy.lms import SimulatedConfig, SimulatedService, SimulatedTask

    rows = [row for split in benchmark.splits for row in split.examples]
    question, answer = next(iter(rows[0].inputs())), next(iter(rows[0].labels()))
    lesson = "formula" if "formula" in rows[0] else answer
    task = SimulatedTask.from_examples(rows, question, answer, key_of=lambda row: str(row[lesson]), seed=seed)
    settings: dict[str, Any] = {"seed": seed, "slots": config.slots, "time_scale": config.time_scale}
    return SimulatedService(SimulatedConfig(**{k: v for k, v in settings.items() if v is not None}), task)


def _key(role: str, config: LMConfig) -> str | None:
    if config.api_key_env is None:
        return None
    key = os.environ.get(config.api_key_env)
    if not key:
        problem, remedy = "names a variable that is not set", f"Set it, for example: export {config.api_key_env}=…"
        raise ArgumentValueError(f"lms.{role}.api_key_env", config.api_key_env, problem, remedy)
    return key
