"""LMs from a file: of a service, in this process, or simulated."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import dspy

from combee_dspy.benchmarks import LoadedBenchmark
from combee_dspy.cli._config import LMConfig
from combee_dspy.exceptions import ArgumentValueError, MissingDistributionError
from combee_dspy.lms import ChoiceAdapter, ConstrainedJSONAdapter, embedded

__all__ = ["Known", "adapter_of", "check_lm", "opened_lms"]

_ADAPTERS = {"chat": dspy.ChatAdapter, "json": dspy.JSONAdapter, "xml": dspy.XMLAdapter, "choice": ChoiceAdapter,
             "constrained-json": ConstrainedJSONAdapter}  # fmt: skip

Known = Sequence[tuple[LoadedBenchmark, Mapping[str, Any]]]
"""Benchmarks that a simulated model knows, each with the parameters that it was read with."""


def check_lm(place: str, config: LMConfig, known: Known) -> None:
    """Refuse an LM whose key is not set, or whose service cannot be simulated, without making it."""
    if config.model == "simulated":
        _simulator()
        if not known:
            raise ArgumentValueError(place, "simulated", "simulates only benchmarks", "Give data.benchmark.")
    if config.api_key_env is not None and not os.environ.get(config.api_key_env):
        remedy = f"Set it, for example: export {config.api_key_env}=…"
        raise ArgumentValueError(f"{place}.api_key_env", config.api_key_env, "is not set in the environment", remedy)


@contextmanager
def opened_lms(known: Known, seed: int) -> Iterator[Callable[[LMConfig], dspy.LM]]:
    """Give what makes LMs, one for all places with the same settings; a simulated service ends with the context."""
    with ExitStack() as stack:
        made: list[tuple[LMConfig, dspy.LM]] = []

        def lm_of(config: LMConfig) -> dspy.LM:
            for other, lm in made:
                if other == config:
                    return lm
            given = config.model_dump(exclude={"model", "api_key_env", "options", "time_scale"}, exclude_none=True)
            given |= config.options
            if config.model == "simulated":
                given.pop("slots", None)
                lm = stack.enter_context(_service(config, known, seed)).lm(**given)
                # Its port is another each time, and says nothing of what it answers: a run that goes on is the same.
                lm.cache_identity = f"simulated with seed {seed}"
            elif config.model == "embedded":
                lm = embedded(**given)
            else:
                key = {"api_key": os.environ[config.api_key_env]} if config.api_key_env else {}
                lm = dspy.LM(config.model, **given, **key)
            made.append((config, lm))
            return lm

        yield lm_of


def adapter_of(name: str | None, task: LMConfig) -> dict[str, Any]:
    """Return DSPy's setting of the adapter, empty for DSPy's own choice.

    The embedded model gets one that constrains its answers unless another is named: no other works for it.
    """
    name = name or ("choice" if task.model == "embedded" else None)
    return {} if name is None else {"adapter": _ADAPTERS[name]()}


def _simulator() -> Any:
    try:
        return importlib.import_module("combee_bench.simulated")
    except ModuleNotFoundError as error:
        raise MissingDistributionError("the model 'simulated'", "combee-bench") from error


def _service(config: LMConfig, known: Known, seed: int) -> Any:
    """Return a service that knows what every one of some benchmarks asks."""
    simulated = _simulator()
    tasks = [simulated.benchmark_task(benchmark, seed, params=params) for benchmark, params in known]
    questions = {question.text: question for task in reversed(tasks) for question in task.questions}
    fields = dict.fromkeys(field for task in tasks for field in task.answer_fields)
    settings = config.model_dump(include={"slots", "time_scale"}, exclude_none=True)
    return simulated.SimulatedService(
        simulated.SimulatedConfig(seed=seed, **settings),
        replace(tasks[0], questions=tuple(questions.values()), answer_fields=tuple(fields)),
    )
