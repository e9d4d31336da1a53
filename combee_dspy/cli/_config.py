"""What a file of ``combee run`` may hold. Options are those of Python, under the same names."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Collection
from typing import Annotated, Any, Literal, TypeVar, get_type_hints

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, create_model, model_validator

from combee_dspy.combee import Combee
from combee_dspy.diversity import Diversity
from combee_dspy.evaluation import Heldout
from combee_dspy.lms.redact import SECRET_NAME
from combee_dspy.stopping import Budget
from combee_dspy.traces import Selection

S = TypeVar("S", bound="Section")


class Section(BaseModel):
    """A part of the file. Frozen; a key that it does not have is refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)


def _with_arguments(target: type[object], *, but: Collection[str]) -> Callable[[type[S]], type[S]]:
    """Give a section the arguments of a class as well, but for those that it has itself.

    Types, defaults and help are those of the class, so a file cannot differ from Python.

    Args:
        target: The class; its docstring explains each argument.
        but: Arguments that a file cannot hold, or holds elsewhere.
    """

    def extended(section: type[S]) -> type[S]:
        text = inspect.getdoc(target) or ""
        items = re.findall(r"^    (\w+): (.+(?:\n {8}.+)*)", text, re.MULTILINE)
        help_of = {name: " ".join(words.replace("``", "").split()) for name, words in items}
        # A dataclass has its types on the class, any other class on its constructor.
        holder = target if dataclasses.is_dataclass(target) else target.__init__
        types = get_type_hints(holder, include_extras=True)
        fields: dict[str, Any] = {
            name: (types[name], Field(parameter.default, description=help_of[name]))
            for name, parameter in inspect.signature(target).parameters.items()
            if name not in but and name not in section.model_fields
        }
        return create_model(section.__name__, __base__=section, __doc__=section.__doc__, **fields)

    return extended


class StrategyConfig(Section):
    """A strategy or a benchmark: its name, and its constructor's parameters."""

    name: str
    params: dict[str, Any] = Field(default_factory=dict)


class LMConfig(Section):
    """One LM.

    Attributes:
        model: DSPy's name of the model (``openai/gpt-5-mini``), or ``embedded``, or ``simulated``.
        api_base: Address of an OpenAI-compatible service.
        api_key_env: Environment variable that holds the key. Keys themselves have no place in a
            file.
        temperature: Sampling temperature.
        max_tokens: Longest answer, in tokens.
        num_retries: How often DSPy tries a failed call again.
        cache: Whether DSPy's cache may answer.
        options: Further arguments of ``dspy.LM``, such as ``reasoning_effort``.
        slots: Calls at once, for ``embedded`` and ``simulated``.
        file: A GGUF file, or the list of its parts in order, for ``embedded``;
            SmolLM2-135M-Instruct without one.
        sha256: SHA-256 in hex of all parts together, checked before the model is loaded, for
            ``embedded``.
        context: Longest prompt plus answer in tokens, for ``embedded``.
        time_scale: Wall seconds for one simulated second, for ``simulated``.
    """

    model: str
    api_base: str | None = None
    api_key_env: str | None = None
    temperature: float | None = None
    max_tokens: Annotated[int | None, Field(gt=0)] = None
    num_retries: Annotated[int | None, Field(ge=0)] = None
    cache: bool | None = None
    options: dict[str, Any] = Field(default_factory=dict)
    slots: Annotated[int | None, Field(gt=0)] = None
    file: str | tuple[str, ...] | None = None
    sha256: Annotated[str | None, Field(pattern="^[0-9a-fA-F]{64}$")] = None
    context: Annotated[int | None, Field(ge=128)] = None
    time_scale: Annotated[float | None, Field(ge=0)] = None

    @property
    def parts(self) -> tuple[str, ...]:
        """The model file's parts, in order; none for a model that is no file."""
        return (self.file,) if isinstance(self.file, str) else self.file or ()

    @model_validator(mode="after")
    def _fits(self) -> LMConfig:
        remote, weights = ("api_base", "api_key_env"), ("file", "sha256", "context")
        local = {"embedded": (*remote, "time_scale"), "simulated": (*remote, *weights)}
        for name in local.get(self.model, ("slots", "time_scale", *weights)):
            if getattr(self, name) is not None:
                raise ValueError(f"{self.model!r} takes no {name}")
        if self.sha256 and not self.file:
            raise ValueError("sha256 checks a file: give file too")
        if any(map(SECRET_NAME.search, self.options)):
            raise ValueError(
                "options holds a key: put it into an environment variable and name that in"
                " api_key_env"
            )
        return self


def _or_name(key: str, of: type[Section]) -> BeforeValidator:
    """Let a plain name stand for the mapping that holds nothing else."""
    return BeforeValidator(
        lambda value: {key: value} if isinstance(value, str) else value,
        json_schema_input_type=str | of,
    )


def _or_single(item: Any) -> BeforeValidator:
    """Let a single item stand for the list that holds nothing else."""
    return BeforeValidator(
        lambda value: value if isinstance(value, list) else [value],
        json_schema_input_type=list[item] | item,
    )


def _on_or_off(value: Any) -> Any:
    return (Diversity() if value else Diversity.off()) if isinstance(value, bool) else value


_OneStrategy = Annotated[StrategyConfig, _or_name("name", StrategyConfig)]
_Several = Annotated[list[_OneStrategy], _or_single(_OneStrategy)]
_LM = Annotated[LMConfig, _or_name("model", LMConfig)]
_Diversity = Annotated[
    Diversity, BeforeValidator(_on_or_off, json_schema_input_type=bool | Diversity)
]


class DataConfig(Section):
    """Where the examples come from: a benchmark, or ``.jsonl``, ``.json`` or ``.csv`` files.

    Attributes:
        benchmark: A benchmark, which brings its own splits.
        train: A file of examples to learn from.
        validation: … to compare candidates on.
        heldout: … for the final figure.
        inputs: Fields that the program is given; the others are labels.
    """

    benchmark: _OneStrategy | None = None
    train: str | None = None
    validation: str | None = None
    heldout: str | None = None
    inputs: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _has_a_source(self) -> DataConfig:
        files = self.model_fields_set - {"benchmark"}
        named = self.train or self.validation or self.heldout
        if (self.benchmark is not None) == bool(files) or not (
            self.benchmark or (named and self.inputs)
        ):
            raise ValueError(
                "needs either a benchmark, or train (a file) and inputs (fields the program is"
                " given)"
            )
        return self


class TracesConfig(StrategyConfig):
    """Rollouts that were recorded elsewhere: a source, and which of its traces are read.

    Attributes:
        selection: Which are read; the options of ``combee_dspy.traces.Selection``.
        heldout_days: Days before the newest trace whose inputs are held out, where they have
            expected answers.
    """

    selection: Selection | None = None
    heldout_days: Annotated[float | None, Field(gt=0)] = None


class TaskLMsConfig(Section):
    """The LM of one of several tasks."""

    task: _LM


class LMsConfig(TaskLMsConfig):
    """LMs by role. The proposer is the task LM where none is given."""

    proposer: _LM | None = None


class StrategiesConfig(Section):
    """Strategies by kind; ``stopping`` are rules beside the budget. What is left out is
    ``Combee``'s default.
    """

    artifact: _OneStrategy | None = None
    aggregator: _OneStrategy | None = None
    operators: _Several | None = None
    controller: _OneStrategy | None = None
    executor: _OneStrategy | None = None
    stopping: _Several = Field(default_factory=list)


@_with_arguments(Heldout, but=["rows"])
class HeldoutTerms(Section):
    """What is to be claimed from the held-out examples; see :class:`combee_dspy.Heldout`."""


class TaskConfig(Section):
    """What each of several tasks may say for itself, in place of what the file says.

    Attributes:
        data: The examples.
        traces: Recorded rollouts, which are learned from first.
        lms: The LMs.
        program: ``module:object``: a DSPy program, its class, or a function that returns one. The
            benchmark's own by default.
        metric: ``module:function``. The benchmark's own by default.
        adapter: DSPy's adapter for all calls.
        heldout: What is to be claimed from the held-out examples.
        seed: Seed of everything random.
        output: File for the compiled program's state (JSON); ``{name}`` becomes the task's name.
    """

    data: DataConfig | None = None
    traces: Annotated[TracesConfig, _or_name("name", TracesConfig)] | None = None
    lms: TaskLMsConfig | None = None
    program: str | None = None
    metric: str | None = None
    adapter: Literal["chat", "json", "xml", "choice", "constrained-json"] | None = None
    heldout: HeldoutTerms = HeldoutTerms()
    seed: Annotated[int, Field(ge=0)] | None = 0
    output: str | None = None


# Arguments of Combee that no file holds, and those that are made of what a file says.
_NO_KEYS = {"reflection_lm", "wandb_api_key", "elsewhere", *StrategiesConfig.model_fields}
_MADE = {"metric", "budget", "tracker", "instruction_proposer", "code_proposer"}


@_with_arguments(Combee, but=_NO_KEYS)
class RunConfig(TaskConfig):
    """A run, or several: what a task may say, the arguments of ``Combee``, and the tasks where
    there are several.

    Attributes:
        strategies: How to search.
        budget: When to stop.
        diversity: What is done against collapse; ``false`` for nothing.
        candidate_selection_strategy: How parents are drawn, by its name in gepa.
        component_selector: What an update edits, by its name in gepa.
        instruction_proposer: ``module:object``: a proposer of GEPA's kind.
        code_proposer: ``module:object``: a proposer for the code of ``dspy.Flex`` parts.
        tracker: Who reads the journal meanwhile.
        tasks: What each of several tasks says for itself, by name. They share a journal and a
            service.
        at_once: Tasks under way at a time.
    """

    lms: LMsConfig | None = None
    strategies: StrategiesConfig = StrategiesConfig()
    budget: Budget | None = None
    diversity: _Diversity | None = None
    candidate_selection_strategy: str = "pareto"
    component_selector: str = "round_robin"
    instruction_proposer: str | None = None
    code_proposer: str | None = None
    tracker: _Several | None = None
    tasks: dict[str, TaskConfig | None] = Field(default_factory=dict)
    at_once: Annotated[int, Field(ge=1)] | None = None

    def arguments(self) -> dict[str, Any]:
        """Return what goes to ``Combee`` as it is: no more than the file says."""
        names = {*inspect.signature(Combee).parameters} - _MADE
        return {name: getattr(self, name) for name in self.model_fields_set & names}

    def of_task(self, name: str) -> RunConfig:
        """Return what holds for one task: its own settings, and the file's for the rest."""
        own = self.tasks[name] or TaskConfig()
        changes = {key: getattr(own, key) for key in own.model_fields_set}
        if own.lms is not None and self.lms is not None:
            changes["lms"] = self.lms.model_copy(update={"task": own.lms.task})
        return self.model_copy(update=changes)
