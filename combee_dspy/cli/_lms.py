"""The LMs of a run file: whether each can be made, and making it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any, Protocol, cast

import dspy

from combee_dspy import registry
from combee_dspy.benchmarks import LoadedBenchmark
from combee_dspy.cli._config import LMConfig
from combee_dspy.exceptions import ArgumentValueError, MissingDistributionError
from combee_dspy.lms import embedded

__all__ = ["Benchmarks", "LMMaker", "ServiceMaker", "check_lm", "locate", "make_lm"]

Benchmarks = Sequence[tuple[LoadedBenchmark, Mapping[str, Any]]]
"""Benchmarks that a simulated model knows, each with the parameters that it was read with."""


class LMMaker(Protocol):
    """Makes an LM of a service that runs, from arguments of ``dspy.LM`` beside its address."""

    def __call__(self, **options: Any) -> dspy.LM:
        """Return a new LM."""


class ServiceMaker(Protocol):
    """An entry point of ``combee_dspy.services``: starts a service, which runs while its context
    does.
    """

    def __call__(
        self, benchmarks: Benchmarks, *, seed: int, slots: int | None, time_scale: float | None
    ) -> AbstractContextManager[LMMaker]:
        """Return the service, which knows what these benchmarks ask; ``None`` for its own
        default.
        """


def check_lm(place: str, config: LMConfig, *, simulated: bool) -> None:
    """Refuse an LM whose key is not set, or whose service cannot be simulated, without making
    it.
    """
    if config.model == "simulated":
        _simulator()
        if not simulated:
            raise ArgumentValueError(
                place, "simulated", "simulates only benchmarks", "Give data.benchmark."
            )
    for file in config.parts:
        if not Path(file).is_file():
            raise ArgumentValueError(
                f"{place}.file", file, "is no file", "Give the path of a GGUF file."
            )
    if config.api_key_env is not None and not os.environ.get(config.api_key_env):
        remedy = f"Set it, for example: export {config.api_key_env}=…"
        raise ArgumentValueError(
            f"{place}.api_key_env", config.api_key_env, "is not set in the environment", remedy
        )


def locate(config: LMConfig, folder: Path) -> LMConfig:
    """Return an LM whose files are looked for from a folder."""
    if not config.parts:
        return config
    return config.model_copy(update={"file": tuple(str(folder / part) for part in config.parts)})


def _simulator() -> ServiceMaker:
    service = cast("ServiceMaker | None", registry.extension("services", "simulated"))
    if service is None:
        raise MissingDistributionError("the model 'simulated'", "combee-dspy[all]")
    return service


def make_lm(config: LMConfig, benchmarks: Benchmarks, seed: int, stack: ExitStack) -> dspy.LM:
    """Return an LM; a simulated service of its runs until the stack is closed."""
    if config.model == "simulated":
        return _simulated(config, benchmarks, seed, stack)
    if config.model == "embedded":
        return embedded(**_options(config, "slots", "file", "sha256", "context"))
    key = {"api_key": os.environ[config.api_key_env]} if config.api_key_env else {}
    return dspy.LM(config.model, **_options(config, "api_base"), **key)


def _simulated(config: LMConfig, benchmarks: Benchmarks, seed: int, stack: ExitStack) -> dspy.LM:
    service = _simulator()(benchmarks, seed=seed, slots=config.slots, time_scale=config.time_scale)
    lm = stack.enter_context(service)(**_options(config))
    # Its port is another each time, and says nothing of what it answers: a run that goes on is the
    # same.
    lm.cache_identity = f"simulated with seed {seed}"
    return lm


def _options(config: LMConfig, *more: str) -> dict[str, Any]:
    """Return what any LM takes, and more settings by name; ``options`` come before all of them."""
    names = {"temperature", "max_tokens", "num_retries", "cache", *more}
    return config.model_dump(include=names, exclude_none=True) | config.options
