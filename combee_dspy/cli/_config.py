"""What ``combee run`` reads: a YAML file, checked before anything else happens."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.tracking import Redactor

__all__ = [
    "BudgetConfig",
    "DataConfig",
    "LMConfig",
    "PriceConfig",
    "RunConfig",
    "StrategyConfig",
    "checked_config",
    "read_config",
    "read_mapping",
]

Limit = Annotated[float | None, Field(gt=0, allow_inf_nan=False)]


def _named(value: object, key: str) -> object:
    """Let a plain name stand for the mapping that holds nothing else."""
    return {key: value} if isinstance(value, str) else value


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class StrategyConfig(_Strict):
    """A strategy or a benchmark: its name, and its constructor's parameters."""

    name: str
    params: dict[str, Any] = {}


class LMConfig(_Strict):
    """One LM.

    Attributes:
        model: DSPy's name of the model (``openai/gpt-5-mini``), or ``embedded``, or ``simulated``.
        api_base: Address of an OpenAI-compatible service.
        api_key_env: Environment variable that holds the key. Keys themselves have no place in a file.
        temperature: Sampling temperature.
        max_tokens: Longest answer, in tokens.
        num_retries: How often DSPy tries a failed call again.
        cache: Whether DSPy's cache may answer.
        options: Further arguments of ``dspy.LM``, such as ``reasoning_effort``.
        slots: Calls at once, for ``embedded`` and ``simulated``.
        time_scale: Wall seconds for one simulated second, for ``simulated``.
    """

    model: str
    api_base: str | None = None
    api_key_env: str | None = None
    temperature: float | None = None
    max_tokens: Annotated[int | None, Field(gt=0)] = None
    num_retries: Annotated[int | None, Field(ge=0)] = None
    cache: bool | None = None
    options: dict[str, Any] = {}
    slots: Annotated[int | None, Field(gt=0)] = None
    time_scale: Annotated[float | None, Field(ge=0)] = None

    @property
    def local(self) -> bool:
        """Whether this process serves it."""
        return self.model in ("embedded", "simulated")

    @model_validator(mode="after")
    def _fits(self) -> LMConfig:
        remote = [name for name in ("api_base", "api_key_env") if getattr(self, name) is not None]
        if self.local and remote:
            raise ValueError(f"{self.model} runs in this process and takes no {remote[0]}")
        if self.slots is not None and not self.local:
            raise ValueError("slots is for the models embedded and simulated alone")
        if self.time_scale is not None and self.model != "simulated":
            raise ValueError("time_scale is for the model simulated alone")
        if any("key" in name.lower() for name in self.options):
            raise ValueError("options holds a key: put it into an environment variable and name that in api_key_env")
        return self


class PriceConfig(_Strict):
    """Dollars per million tokens."""

    prompt: float
    completion: float
    cached_prompt: float | None = None


Strategy = Annotated[StrategyConfig, BeforeValidator(lambda value: _named(value, "name"))]
LM = Annotated[LMConfig, BeforeValidator(lambda value: _named(value, "model"))]


class DataConfig(_Strict):
    """Where the examples come from: a benchmark, or files.

    Attributes:
        benchmark: A benchmark's name, or its name and parameters.
        train: A ``.jsonl``, ``.json`` or ``.csv`` file of examples to learn from.
        validation: … to compare candidates on.
        heldout: … for the final figure.
        inputs: Fields that the program is given; the others are labels.
    """

    benchmark: Strategy | None = None
    train: str | None = None
    validation: str | None = None
    heldout: str | None = None
    inputs: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _one_source(self) -> DataConfig:
        files = [name for name in ("train", "validation", "heldout", "inputs") if getattr(self, name)]
        if self.benchmark is not None and files:
            raise ValueError(f"names a benchmark and {files[0]}: a benchmark brings its own splits")
        if self.benchmark is None and not (self.train and self.inputs):
            raise ValueError("needs a benchmark, or train (a file) and inputs (the fields the program is given)")
        return self


class LMsConfig(_Strict):
    """LMs by role. The proposer is the task LM where none is given."""

    task: LM
    proposer: LM | None = None


class StrategiesConfig(_Strict):
    """Strategies by kind. What is left out is ``Combee``'s default.

    Attributes:
        artifact: What is learned.
        aggregator: Turns reflections into lessons.
        operators: Make children of lessons.
        controller: Plans minibatches.
        executor: Where rollouts run.
        embedder: What the guard against collapse compares candidates by.
        stopping: Rules beside the budget; the run stops at the first that says so.
    """

    artifact: Strategy | None = None
    aggregator: Strategy | None = None
    operators: list[Strategy] | None = None
    controller: Strategy | None = None
    executor: Strategy | None = None
    embedder: Strategy | None = None
    stopping: list[Strategy] | None = None


class BudgetConfig(_Strict):
    """Limits; the run stops softly at the first that is reached."""

    rollouts: Limit = None
    calls: Limit = None
    tokens: Limit = None
    dollars: Limit = None
    seconds: Limit = None

    @model_validator(mode="after")
    def _some(self) -> BudgetConfig:
        if not any(value is not None for _, value in self):
            raise ValueError(f"has no limit: give at least one of {', '.join(type(self).model_fields)}")
        return self


class RunConfig(_Strict):
    """One run.

    Attributes:
        data: The examples.
        lms: The models.
        budget: When to stop.
        program: ``module:object``, a DSPy program, its class, or a function that returns one;
            the benchmark's own by default.
        metric: ``module:function``; the benchmark's own by default.
        strategies: How to search.
        prices: Dollars per million tokens by model, over the built-in list.
        adapter: DSPy's adapter for all calls.
        seed: The run's seed.
        threads: Rollouts in flight.
        log_dir: Folder for checkpoints; running again with it resumes.
        tracker: Where the run is recorded: ``mlflow``, or a tracker's name and parameters.
        probe: Whether each LM is asked for one token before anything is bought.
        output: File for the compiled program's state (JSON).
    """

    data: DataConfig
    lms: LMsConfig
    budget: BudgetConfig
    program: str | None = None
    metric: str | None = None
    strategies: StrategiesConfig = StrategiesConfig()
    prices: dict[str, PriceConfig] = {}
    adapter: Literal["chat", "json", "xml", "constrained-json"] | None = None
    seed: Annotated[int, Field(ge=0)] = 0
    threads: Annotated[int | None, Field(gt=0)] = None
    log_dir: str | None = None
    tracker: Strategy | None = None
    probe: bool = True
    output: str | None = None

    @model_validator(mode="after")
    def _complete(self) -> RunConfig:
        if self.data.benchmark is None:
            missing = [name for name in ("program", "metric") if getattr(self, name) is None]
            if missing:
                raise ValueError(f"needs {missing[0]} (module:object), since only a benchmark brings its own")
        return self


def read_config(path: Path) -> RunConfig:
    """Read and check a configuration file.

    Raises:
        ArgumentValueError: It cannot be read, is no YAML mapping, or a key or value in it cannot be used.
            Of several problems the first is told, with how many there are.
    """
    return checked_config(read_mapping(path))


def read_mapping(path: Path) -> dict[str, Any]:
    """Read a YAML file that holds a mapping.

    Raises:
        ArgumentValueError: It cannot be read, or is no YAML mapping.
    """
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ArgumentValueError("CONFIG", str(path), f"cannot be read: {error}", "Give a YAML file.") from error
    except (yaml.YAMLError, RecursionError) as error:
        where = " ".join(str(error).split())
        raise ArgumentValueError("CONFIG", str(path), f"is not YAML: {where}", "See combee run --help.") from error
    if not isinstance(data, dict):
        raise ArgumentValueError("CONFIG", str(path), "holds no mapping at the top", "See combee run --help.")
    return data


def checked_config(data: Mapping[str, Any]) -> RunConfig:
    """Return the configuration of a run.

    Raises:
        ArgumentValueError: A key or a value cannot be used.
    """
    try:
        return RunConfig.model_validate(data)
    except ValidationError as error:
        raise _told(error) from error


def _told(error: ValidationError) -> ArgumentValueError:
    # An unknown key comes first: it is often why another seems to be missing.
    problems = sorted(error.errors(include_url=False), key=lambda one: one["type"] != "extra_forbidden")
    first, more = problems[0], len(problems) - 1
    place = ".".join(str(part) for part in first["loc"]) or "CONFIG"
    value = Redactor().data({place: first["input"]})[place]
    tail = f" ({more} more to correct.)" if more else ""
    if first["type"] == "extra_forbidden":
        return ArgumentValueError(place, value, "is no known key", _nearest(first["loc"]) + tail)
    if first["type"] == "missing":
        holder = ", ".join(first["input"]) if isinstance(first["input"], Mapping) else first["input"]
        return ArgumentValueError(place, f"keys: {holder}", "is missing", f"Add it.{tail}")
    problem = first["msg"].removeprefix("Value error, ")
    return ArgumentValueError(place, value, f"cannot be used: {problem}", f"See combee run --help.{tail}")


def _nearest(place: tuple[int | str, ...]) -> str:
    known = sorted(_fields(place[:-1]))
    wrong = str(place[-1])
    if wrong.replace("-", "_").lower() in ("api_key", "key") and "api_key_env" in known:
        return "Put the key into an environment variable and name that variable in api_key_env."
    close = difflib.get_close_matches(wrong, known, n=1, cutoff=0.5)
    guess = f"Did you mean {close[0]!r}? " if close else ""
    return f"{guess}Known keys: {', '.join(known)}."


def _fields(place: tuple[int | str, ...]) -> set[str]:
    """Return the keys that may stand at a place of the configuration."""
    model: type[BaseModel] = RunConfig
    for part in place:
        field = model.model_fields.get(str(part))
        # A part that is no field is an index of a list or a name in a mapping: the model stays.
        if field is not None:
            model = _model_in(field.annotation) or model
    return set(model.model_fields)


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    inside = (_model_in(part) for part in getattr(annotation, "__args__", ()))
    return next((found for found in inside if found is not None), None)
