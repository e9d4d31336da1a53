"""The specification of a search, and a refusal that lists everything that is missing."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo

from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.files import read_plain
from combee_dspy.yaml_files import load_yaml
from combee_strategist.exceptions import PlanGapsError

__all__ = ["Override", "Spec", "ask", "questions", "read_spec"]

_VAGUE = re.compile(
    r"\W*(tbd|tba|todo|n/?a|none|unknown|later|some(thing)?|various|stuff|good|fast|big|small|few"
    r"|many|yes|no|any(thing)?"
    r"|\w?|the usual|as usual|see above|standard|default|x+|\.+|whatever|no idea"
    r"|i? ?do( no|n'?)t know|ask me( later)?"
    r"|(still )?to be [\w ]+"
    r"|(is |as |still )*(yet )?(not|un)( yet)? ?(known|decided|determined|defined|sure|clear)"
    r"( yet)?)\W*",
    re.IGNORECASE,
)
_SENTENCE, _DISTINCT = 5, 4


def _clear(text: str) -> str:
    if _VAGUE.fullmatch(text):
        raise ValueError("is vague")
    return text.strip()


def _sentence(text: str) -> str:
    words = re.findall(r"\w+", text.lower())
    if len(words) < _SENTENCE or len(set(words)) < _DISTINCT or _VAGUE.fullmatch(text):
        raise ValueError(f"is vague: a sentence has {_SENTENCE} words or more, and says something")
    return text.strip()


_Words = Annotated[str, AfterValidator(_clear)]
_Name = Annotated[str, AfterValidator(_clear), Field(pattern=r"^[\w.-]+$")]
_Sentence = Annotated[str, AfterValidator(_sentence)]
_Score = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
_Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_Count = Annotated[int, Field(ge=1)]


def _asks_for(purpose: str, example: object) -> Any:
    return Field(description=purpose, examples=[example])


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class TaskSpec(_Section):
    """What is learned."""

    name: _Name = _asks_for(
        "names the diagnosis, the plan and the runs: letters, digits, _ . -", "formula"
    )
    inputs: _Words = _asks_for(
        "the shape of what the program is given", "question: str, up to 400 tokens"
    )
    outputs: _Words = _asks_for("the shape of what it must return", "answer: a number with a unit")
    metric: _Words = _asks_for(
        "what a point is a hundredth of", "my_package.qa:exact_match, 0 or 1 an example"
    )
    baseline: _Score = _asks_for(
        "held-out score of the program as it is, which the gain is counted from", 0.41
    )
    count: _Count = Field(
        1, description="similar programs that are to be learned over the same service"
    )


class SerialSpec(_Section):
    """The serial search that is to be beaten."""

    method: _Words = _asks_for("whom the claim is made against", "dspy.GEPA")
    version: _Words = _asks_for("so that the baseline can be run again", "dspy 3.4.1")
    rollouts: _Count = _asks_for(
        "rollouts until it no longer got better: the wide search gets four times as many", 1200
    )
    score: _Score = _asks_for(
        "held-out score that it converged to: the target is one point more", 0.62
    )
    workers: _Count = Field(
        1, description="rollouts that it had in flight: the wide search has eight times as many"
    )
    run: str | None = Field(
        None, description="its log_dir: with it, figures are measured and not assumed"
    )


class ModelsSpec(_Section):
    """Which model has which role."""

    task: _Words = _asks_for("the LM that the program calls", "openai/gpt-4o-mini")
    proposer: _Words = _asks_for("the LM that reads rollouts and writes prompts", "openai/gpt-4o")
    evaluator: _Words = _asks_for(
        "the LM that judges answers, smaller than the proposer; code where code scores", "code"
    )

    @property
    def judged(self) -> bool:
        """Whether a model judges."""
        return self.evaluator.lower() != "code"


class HardwareSpec(_Section):
    """What answers."""

    kind: _Words = _asks_for("speed and price hold for one kind of machine", "NVIDIA H100")
    count: _Count = _asks_for("how many of them", 2)
    memory_gb: Annotated[float, Field(gt=0)] = _asks_for("bounds the calls that fit at once", 80)
    network: _Words = _asks_for(
        "what a call costs besides the model's own time", "same rack, 0.2 ms"
    )
    slots: _Count = _asks_for(
        "calls answered at once: what more workers than this send only waits", 64
    )
    models: Literal["shared", "split"] = _asks_for(
        "whether optimiser and task model compete for these slots", "split"
    )


class BudgetSpec(_Section):
    """What may be spent."""

    rollouts: _Count = _asks_for("the most rollouts", 5000)
    tokens: _Count = _asks_for("the most tokens, of all models", 20_000_000)
    gpu_seconds: _Amount = _asks_for("the most GPU-seconds; 0 where none are yours", 7200)
    deadline: date = _asks_for("the day by which the result is needed", "2027-01-31")
    binds: Literal["rollouts", "tokens", "gpu_seconds", "deadline"] = _asks_for(
        "which one is met first", "rollouts"
    )


class EvaluationSpec(_Section):
    """What the claim is measured on."""

    dataset: _Words = _asks_for(
        "which rows the claim is about", "FinLoRA Formula, revision 3f2a91c"
    )
    split: _Words = _asks_for(
        "how held-out rows were set apart, so that others can",
        "by company, sorted by SHA-256 of the row",
    )
    scorer: _Words = _asks_for(
        "what scores the held-out rows, code or judge", "my_package.qa:exact_match at 9d1f"
    )
    owner: _Words = _asks_for(
        "who answers for the rows and may change them", "Ada Lovelace, data team"
    )
    used_to_tune: bool = _asks_for(
        "whether anybody has ever tuned on these rows: they support no claim then", "false"
    )


class Override(_Section):
    """A default of the plan that was replaced, and why."""

    value: Any
    reason: _Sentence = _asks_for(
        "is logged with the value", "the service bills by the batch, not by the call"
    )


class Spec(_Section):
    """What a plan is made from; ``combee plan init`` asks for it.

    Attributes:
        task: What is learned.
        serial: The serial search that is to be beaten.
        models: Which model has which role.
        hardware: What answers.
        budget: What may be spent.
        evaluation: What the claim is measured on.
        failure_cost: What a wrong answer in production costs, in a sentence.
        failure: What kind of cost that is: it decides the canary's share and hours.
        wide: The ``log_dir`` of an earlier wide search, which the number of workers grows from.
        run: The ``combee run`` file of the wide search, beside the specification; its choices are
            checked.
        overrides: Defaults of the plan that are replaced, each with its reason.
    """

    task: TaskSpec
    serial: SerialSpec
    models: ModelsSpec
    hardware: HardwareSpec
    budget: BudgetSpec
    evaluation: EvaluationSpec
    failure_cost: _Sentence = _asks_for(
        "what the kind of failure below is read from",
        "a wrong answer is seen by a customer and costs a refund",
    )
    failure: Literal["annoys", "costs", "harms"] = _asks_for(
        "whether a wrong answer annoys (somebody asks again), costs (money or hours) or harms (it"
        " cannot be undone): decides the share and the hours of the canary",
        "costs",
    )
    wide: str | None = Field(
        None, description="log_dir of an earlier wide search: workers grow from what it shows"
    )
    run: str | None = Field(
        None, description="the combee run file of the wide search: its choices are checked"
    )
    overrides: dict[str, Override] = {}


def read_spec(source: Mapping[str, Any] | Path) -> Spec:
    """Return a specification without gaps, from a mapping or a YAML file.

    Raises:
        ArgumentValueError: The file cannot be read.
        PlanGapsError: Something is missing, vague, unknown or of another form; it lists everything.
    """
    if isinstance(source, Path):
        try:
            source = cast("Mapping[str, Any]", load_yaml(read_plain(source, follow=True)) or {})
        except OSError as error:
            problem = f"cannot be read: {error.strerror}"
            raise ArgumentValueError("SPEC", str(source), problem, _INIT) from error
        except (ValueError, yaml.YAMLError, RecursionError) as error:  # ValueError: no date
            raise ArgumentValueError(
                "SPEC", str(source), f"cannot be read as YAML: {error}", _INIT
            ) from error
    if not isinstance(source, Mapping):
        raise ArgumentValueError("SPEC", source, "holds no mapping at the top", _INIT)
    # A section that is missing, or that is no mapping, lacks each of its fields.
    sections = {name: source.get(name) for name in _sections()}
    whole = {
        **source,
        **{
            name: section if isinstance(section, Mapping) else {}
            for name, section in sections.items()
        },
    }
    try:
        spec = Spec.model_validate(whole)
    except ValidationError as error:
        raise PlanGapsError(
            tuple(_gap(problem) for problem in error.errors(include_url=False))
        ) from error
    if contradictions := tuple(_contradictions(spec)):
        raise PlanGapsError(contradictions)
    return spec


def _contradictions(spec: Spec) -> Iterator[str]:
    task, serial, budget = spec.task, spec.serial, spec.budget
    if budget.deadline < datetime.now(UTC).date():
        day = "the day by which the result is needed (such as: 2027-01-31)"
        yield f"budget.deadline {budget.deadline} is past: {day}"
    if serial.score <= task.baseline:
        problem = f"serial.score {serial.score:g} is not above task.baseline {task.baseline:g}"
        purpose = "where serial search has brought nothing, going wide repeats that"
        yield f"{problem}: {purpose} (such as: another method)"
    if not getattr(budget, budget.binds):
        problem = f"budget.binds names {budget.binds}, of which there is none"
        yield f"{problem}: which one is met first (such as: rollouts)"


_INIT = "Write one with combee plan init."


def _sections() -> dict[str, type[BaseModel]]:
    kinds = {name: field.annotation for name, field in Spec.model_fields.items()}
    return {
        name: kind
        for name, kind in kinds.items()
        if isinstance(kind, type) and issubclass(kind, BaseModel)
    }


def _field(place: tuple[Any, ...]) -> FieldInfo | None:
    if place[0] == "overrides":
        return Override.model_fields.get(str(place[-1]))
    model = _sections().get(str(place[0]), Spec)
    return model.model_fields.get(str(place[min(len(place) - 1, 1)]))


def _gap(error: Mapping[str, Any]) -> str:
    """Return pydantic's error as one line: where, what is wrong, the purpose, and an example."""
    place = error["loc"]
    where, field = ".".join(map(str, place)), _field(place)
    if error["type"] == "extra_forbidden" or field is None:
        keys = (
            _sections().get(str(place[0]), Spec) if place[0] != "overrides" else Override
        ).model_fields
        near = difflib.get_close_matches(str(place[-1]), keys, n=1)
        problem, purpose, examples = "is no known key", f"known are {', '.join(keys)}", near
    else:
        problem = (
            "is missing"
            if error["type"] == "missing" or error["input"] in (None, "")
            else error["msg"]
        )
        problem = problem.removeprefix("Value error, ")
        problem = problem if problem.startswith("is ") else f"cannot be used ({problem})"
        purpose, examples = field.description or "", field.examples or []
    return f"{where} {problem}: {purpose}" + (f" (such as: {examples[0]})" if examples else "")


def questions() -> Iterator[tuple[str, FieldInfo]]:
    """Give every field that a specification must have, in order, with what is known of it."""
    for name, field in Spec.model_fields.items():
        inner = _sections().get(name)
        if inner is None and field.is_required():
            yield name, field
        elif inner is not None:
            yield from (
                (f"{name}.{key}", field)
                for key, field in inner.model_fields.items()
                if field.is_required()
            )


def ask(
    answers: Mapping[str, Any], answer: Callable[[str, FieldInfo, str], str | None]
) -> dict[str, Any]:
    """Return a specification's mapping: the answers that are there, and those that are asked for.

    Args:
        answers: Values by field, with dots; they are not asked for.
        answer: Asked with the field, what is known of it, and what was wrong with the last answer;
            ``None`` leaves the field empty.
    """
    from pydantic import TypeAdapter

    spec: dict[str, Any] = {}
    for name, field in questions():
        value, problem = answers.get(name), ""
        kind = TypeAdapter[Any](Annotated[field.annotation, field])  # type: ignore[arg-type]
        while value is None:
            if (text := answer(name, field, problem)) is None:
                break
            try:
                value = kind.dump_python(kind.validate_python(text), mode="json")
            except ValidationError as error:
                problem = error.errors()[0]["msg"].removeprefix("Value error, ")
        section, _, key = name.rpartition(".")
        (spec.setdefault(section, {}) if section else spec)[key] = value
    for name in sorted(set(answers) - {question for question, _ in questions()}):
        section, _, key = name.rpartition(".")
        (spec.setdefault(section, {}) if section else spec)[key] = answers[name]
    return spec
