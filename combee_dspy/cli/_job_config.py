"""Several tasks in one YAML file: what they share, and what each says for itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from combee_dspy.cli._config import RunConfig, checked_config
from combee_dspy.exceptions import ArgumentError, ArgumentTypeError, ArgumentValueError
from combee_dspy.tracking.slug import shorten, to_slug

__all__ = ["JobConfig", "is_job", "job_of"]

_OWN = ("adapter", "budget", "data", "lms", "metric", "output", "program", "seed", "strategies")
"""Keys that a task may say for itself, in place of what all share."""

_JOB = ("at_once", "on_error", "shape", "tasks")

_NAME = "{name}"

_LONGEST = 80


@dataclass(frozen=True, slots=True)
class JobConfig:
    """Several runs over one pool.

    Attributes:
        tasks: Each task's configuration, by name, in the file's order.
        shape: As for :func:`combee_dspy.compile_many`.
        at_once: As there.
        on_error: As there.
    """

    tasks: Mapping[str, RunConfig]
    shape: Any = None
    at_once: Any = None
    on_error: Any = "continue"


def is_job(data: Mapping[str, Any]) -> bool:
    """Whether a file's mapping describes several tasks."""
    return "tasks" in data


def job_of(data: Mapping[str, Any]) -> JobConfig:
    """Return a checked job.

    Raises:
        ArgumentTypeError: ``tasks``, or a task, is no mapping.
        ArgumentValueError: A key or a value cannot be used; names the task where it is a task's.
    """
    tasks = data["tasks"]
    example = "Give a mapping from names to what differs, such as {one: {seed: 0}, other: {seed: 1}}."
    if not isinstance(tasks, Mapping) or not tasks:
        raise ArgumentTypeError("tasks", tasks, "is no mapping that holds a task", example)
    shared = {key: value for key, value in data.items() if key not in _JOB}
    found: dict[str, RunConfig] = {}
    for key, own in tasks.items():
        name = str(key)
        if not isinstance(own, (Mapping, type(None))):
            raise ArgumentTypeError(f"tasks.{name}", own, "is no mapping", example)
        found[name] = _task(name, shared, own or {})
    outputs = [config.output for config in found.values() if config.output is not None]
    if len(set(outputs)) < len(outputs):
        raise ArgumentValueError("output", outputs[0], "is written by two tasks", f"Put {_NAME} into it.")
    return JobConfig(found, data.get("shape"), data.get("at_once"), data.get("on_error", "continue"))


def _task(name: str, shared: Mapping[str, Any], own: Mapping[str, Any]) -> RunConfig:
    for key in own:
        if key not in _OWN:
            problem = "is no key of one task"
            raise ArgumentValueError(f"tasks.{name}.{key}", own[key], problem, f"Keys: {', '.join(_OWN)}.")
    try:
        config = checked_config({**shared, **own})
    except ArgumentError as error:
        raise type(error)(f"tasks.{name}: {error.argument}", error.value, error.problem, error.remedy) from error
    slug = shorten(to_slug(name), _LONGEST)
    changes: dict[str, Any] = {}
    if config.output is not None:
        changes["output"] = config.output.replace(_NAME, slug)
    if config.log_dir is not None:
        folder = config.log_dir if _NAME in config.log_dir else f"{config.log_dir}/{_NAME}"
        changes["log_dir"] = folder.replace(_NAME, slug)
    return config.model_copy(update=changes)
