"""Checks the LMs that a run file names, and makes them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any, Protocol, TypeAlias, cast

import dspy

from combee_dspy import registry
from combee_dspy.benchmarks import LoadedBenchmark
from combee_dspy.cli._config import LMConfig
from combee_dspy.exceptions import ArgumentValueError, MissingDistributionError
from combee_dspy.lms import embedded

Benchmarks: TypeAlias = Sequence[tuple[LoadedBenchmark, Mapping[str, Any]]]
"""Benchmarks that a simulated model knows, each with the parameters that it was read with."""


class ServiceMaker(Protocol):
    """An entry point of ``combee_dspy.services``: starts a service for as long as a context lasts.

    The context's value makes an LM of the service, from arguments of ``dspy.LM``.
    """

    def __call__(
        self, benchmarks: Benchmarks, *, seed: int, slots: int | None, time_scale: float | None
    ) -> AbstractContextManager[Callable[..., dspy.LM]]:
        """Return the service, which knows what these benchmarks ask; ``None`` for its default."""


def check_lm(place: str, config: LMConfig, *, simulated: bool) -> None:
    """Check what an LM needs, without making it.

    Args:
        place: Where the file names it.
        config: The LM.
        simulated: Whether a simulated service would know the run's questions.

    Raises:
        ArgumentValueError: Its key is not set, its file is missing, or it cannot be simulated.
        MissingDistributionError: It is simulated, and the simulator is not installed.
    """
    if config.model == "simulated":
        _simulator()
        if not simulated:
            remedy = "Give data.benchmark."
            raise ArgumentValueError(place, "simulated", "simulates only benchmarks", remedy)
    for file in config.parts:
        if not Path(file).is_file():
            remedy = "Give the path of a GGUF file."
            raise ArgumentValueError(f"{place}.file", file, "is no file", remedy)
    variable = config.api_key_env
    if variable is not None and not os.environ.get(variable):
        place, remedy = f"{place}.api_key_env", f"Set it, for example: export {variable}=…"
        raise ArgumentValueError(place, variable, "is not set in the environment", remedy)


def locate(config: LMConfig, folder: Path) -> LMConfig:
    """Return an LM whose files' relative paths start from a folder."""
    if not config.parts:
        return config
    return config.model_copy(update={"file": tuple(str(folder / part) for part in config.parts)})


def _simulator() -> ServiceMaker:
    service = cast("ServiceMaker | None", registry.extension("services", "simulated"))
    if service is None:
        raise MissingDistributionError("the model 'simulated'", "combee-dspy[all]")
    return service


def make_lm(config: LMConfig, benchmarks: Benchmarks, seed: int, stack: ExitStack) -> dspy.LM:
    """Return an LM. A simulated service of its own runs until the stack is closed."""
    if config.model == "embedded":
        return embedded(**_options(config, "slots", "file", "sha256", "context"))
    if config.model == "simulated":
        start = _simulator()
        service = start(benchmarks, seed=seed, slots=config.slots, time_scale=config.time_scale)
        lm = stack.enter_context(service)(**_options(config))
        # Its port differs each time and decides no answer: a run that goes on is the same.
        lm.cache_identity = f"simulated with seed {seed}"
        return lm
    key = {"api_key": os.environ[config.api_key_env]} if config.api_key_env else {}
    return dspy.LM(config.model, **_options(config, "api_base"), **key)


def _options(config: LMConfig, *more: str) -> dict[str, Any]:
    """Return what any LM takes, and more settings by name; ``options`` overrides all of them."""
    names = {"temperature", "max_tokens", "num_retries", "cache", *more}
    return config.model_dump(include=names, exclude_none=True) | config.options
