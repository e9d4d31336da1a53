"""What each command measures: every field is an option, with the help that stands here."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.strategies import parameters

__all__ = [
    "CeilingOptions",
    "CompareOptions",
    "RealOptions",
    "RetentionOptions",
    "SpeedOptions",
    "TuneScanOptions",
    "check_budget",
]

Count = Annotated[int, Field(ge=1)]
Rate = Annotated[float, Field(ge=0, le=1)]
Scale = Annotated[float, Field(ge=0, allow_inf_nan=False)]
AboveZero = Annotated[float, Field(gt=0, allow_inf_nan=False)]
OverloadLaw = Literal[
    "attention", "writing", "reading", "collapse", "dilution", "platitudes", "unlimited"
]
Names = Annotated[tuple[str, ...], Field(min_length=1)]
Numbers = Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1)]
Sizes = Annotated[tuple[Count, ...], Field(min_length=1)]

Margin = Annotated[float, Field(gt=0, lt=100)]

MARGIN = 2.0
"""Points; 189 held-out examples are the fewest that can show it."""

HELDOUT = 200
"""Held-out examples where none are named: enough to show :data:`MARGIN` where nothing differs."""

TRAIN, VALIDATION = 168, 48
"""Examples of a comparison where none are named."""

ROLLOUTS = 600
"""Rollouts of each method of a comparison where none are named."""

# Options that name each thing once.
_SETS = ("methods", "seeds", "aggregators", "sizes")


@parameters
class ServiceOptions:
    """Who answers.

    Args:
        lm: A model by DSPy's name, or embedded; a simulated service by default.
        api_base: Address of an OpenAI-compatible service that has it.
        api_key_env: Environment variable that holds the service's key.
    """

    lm: str | None = None
    api_base: str | None = None
    api_key_env: str | None = None

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            values = getattr(self, field.name)
            if field.name in _SETS and len(set(values)) < len(values):
                raise ArgumentValueError(field.name, values, "names one twice", "Name each once.")
        for value in self._of_a_service():
            if value is not None and self.lm in (None, "embedded"):
                problem = "belongs to a model of a service, and none is named"
                remedy = "Name the model, such as --lm openai/my-model."
                raise ArgumentValueError("lm", value, problem, remedy)

    def _of_a_service(self) -> tuple[str | None, ...]:
        return self.api_base, self.api_key_env


@parameters
class ModelOptions(ServiceOptions):
    """Which model answers, and how it is loaded.

    Args:
        file: A GGUF file for embedded, or its parts by comma, in order; by default
            SmolLM2-135M-Instruct.
        sha256: SHA-256 of the file, checked before it is loaded.
        slots: Calls at once.
        context: Longest prompt plus answer in tokens, for embedded.
        max_tokens: Longest answer in tokens.
    """

    file: str | None = None
    sha256: str | None = None
    slots: Count = 4
    context: Annotated[int, Field(ge=128)] = 16_384
    max_tokens: Count = 1_024

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.lm != "embedded" and self.file is not None:
            problem, remedy = "is for the embedded model only", "Leave out lm, or file."
            raise ArgumentValueError("file", self.file, problem, remedy)

    def settings(self) -> dict[str, Any]:
        """Return what :func:`combee_bench.endpoints.model_lm` takes, but for the name."""
        if self.lm == "embedded":
            file = self.file.split(",") if self.file else None
            own = {"slots": self.slots, "context": self.context, "sha256": self.sha256}
            return {**own, "max_tokens": self.max_tokens, "file": file}
        where = {"api_base": self.api_base, "api_key_env": self.api_key_env}
        return {**where, "max_tokens": self.max_tokens}


@parameters
class SpeedOptions(ServiceOptions):
    """Seconds for one epoch: Combee beside its peers, on one service, in one run.

    Args:
        methods: Methods, by comma; the first is the reference. "all" takes every one.
        seeds: Seeds, such as 0-9: each of service and methods, and timed.
        repeats: Timed runs of each method on each seed; their median is shown.
        path: Rows of the Formula benchmark, instead of formula-mini's.
        examples: Training examples, which make one epoch.
        validation: Validation examples.
        heldout: Held-out examples, read before and after each run.
        slots: Calls served at once; threads of each method.
        time_scale: Wall seconds for one simulated second; 0 waits for nothing and compares held-out
            alone.
        program: What is optimized: chain-of-thought, which reasons before it answers, or predict.
        temperature: Temperature of both LMs: above 0 they sample. By default the service's own.
        auto: End by this budget of GEPA's (light, medium or heavy) instead of after one epoch.
        refused: Share of requests that the simulated service refuses by chance (HTTP 429).
        lessons: What a lesson of the simulated model covers: mistake (one kind, of a formula) or
            formula.
        base_accuracy: Share of questions that the simulated model answers rightly untaught.
        taught_accuracy: Share of them that it answers rightly when taught.
        reasoning_tokens: Median tokens of the simulated model's reasoning.
        reasoning_spread: Standard deviation of the log of these tokens; 0: always as many.
        attention: What the simulated model takes in at once: 12 items, or by reading, about 5,000
            tokens.
        wordings: How calls of the simulated model word a lesson: one, all alike, or each-call, each
            in its own way.
        quoting: Share of its lessons that quote 13 words of a question.
        margin: How many points worse a held-out score may be and still counts as no worse.
    """

    methods: Names = (
        "gepa",
        "gepa-40",
        "combee",
        "combee-trunk-s1",
        "combee-pareto-s1",
        "combee-epoch",
    )
    seeds: Numbers = (0,)
    repeats: Count = 1
    path: Path | None = None
    examples: Count = 240
    validation: Count = 60
    heldout: Count = HELDOUT
    slots: Count = 64
    time_scale: Scale = 0.2
    program: Literal["chain-of-thought", "predict"] = "chain-of-thought"
    temperature: Scale | None = None
    auto: Literal["light", "medium", "heavy"] | None = None
    refused: Rate = 0.0
    lessons: Literal["mistake", "formula"] = "mistake"
    base_accuracy: Rate = 0.0
    taught_accuracy: Rate = 1.0
    reasoning_tokens: Annotated[float, Field(ge=8, allow_inf_nan=False)] = 300.0
    reasoning_spread: Scale = 0.0
    attention: Literal["items", "reading"] = "reading"
    wordings: Literal["one", "each-call"] = "one"
    quoting: Rate = 0.0
    margin: Margin = MARGIN

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.taught_accuracy < self.base_accuracy:
            remedy = "Being taught does not make an answer worse."
            raise ArgumentValueError(
                "taught_accuracy", self.taught_accuracy, "is below base_accuracy", remedy
            )


def check_budget(budget: int, validation: int) -> None:
    """Refuse a budget that does not pay for two validations of so many rows."""
    if budget < 2 * validation:
        remedy = f"Give at least {2 * validation}, better ten times that."
        raise ArgumentValueError("budget", budget, "does not pay for two validations", remedy)


@parameters
class CompareOptions(ServiceOptions):
    """Several methods side by side: held-out score against seconds, rollouts, tokens and dollars.

    Args:
        methods: Methods, by comma; the first is the reference. Costs a point are above the serial
            one, gepa.
        seeds: Seeds, such as 0-4: each of the service and of every method.
        budget: Rollouts that each method may buy. By default the file's whole budget (rollouts,
            tokens, dollars, seconds: whatever is spent first), or 600 rollouts.
        config: A file of combee run: its program, metric, data, models and budget, all rows.
        log_dir: Folder for the journals of Combee's runs; by default the file's log_dir with
            -compare added. Each comparison has a folder of its own in it.
        benchmark: A benchmark's name.
        task: Task of formula-mini: compute or route.
        path: Where the benchmark's rows are, if not bundled.
        train: Training examples; 168.
        validation: Validation examples; 48.
        heldout: Held-out examples, read before and after each run; 200.
        threads: Calls at once; 32, or 4 with the embedded model.
        time_scale: Wall seconds for one simulated second.
        margin: How many points worse a held-out score may be and still counts as no worse.
        reflection_lm: Another model that writes prompts.
        prices: Dollars per million prompt and completion tokens, by comma.
        gpus: GPUs behind the models: a search is charged them for as long as it takes.
    """

    methods: Names = ("gepa", "mipro", "combee")
    seeds: Numbers = (0,)
    budget: Count | None = None
    config: Path | None = None
    log_dir: Path | None = None
    benchmark: str | None = None
    task: str | None = None
    path: Path | None = None
    train: Count | None = None
    validation: Count | None = None
    heldout: Count | None = None
    threads: Count | None = None
    time_scale: AboveZero = 0.2
    margin: Margin = MARGIN
    reflection_lm: str | None = None
    prices: tuple[Scale, Scale] | None = None
    gpus: AboveZero | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.task is not None and self.benchmark not in (None, "formula-mini"):
            raise ArgumentValueError(
                "task", self.task, "is a choice of formula-mini only", "Leave it out."
            )
        if self.config is None:
            check_budget(self.budget or ROLLOUTS, self.validation or VALIDATION)
            return
        of_a_benchmark = ("benchmark", "task", "path", "train", "validation", "heldout", "lm")
        for name in of_a_benchmark:
            if (value := getattr(self, name)) is not None:
                raise ArgumentValueError(
                    name, value, "stands in the file already", "Leave it out, or config."
                )

    def _of_a_service(self) -> tuple[str | None, ...]:
        return self.api_base, self.api_key_env, self.reflection_lm


@parameters
class CeilingOptions(ModelOptions):
    """What a model answers without lessons, and with all of them: what there is to learn.

    Args:
        seeds: Seeds, such as 0-2: each of the benchmark's rules and rows.
        benchmark: A benchmark's name.
        path: Where its rows are, if not bundled; each seed draws rows of its own from those held
            out.
        rules: How many rules house-rules has, if not its default: a small model obeys few of many.
        choices: Whether the answers of house-rules are codes to choose among: a small model obeys
            more of these.
        lessons: A file of lessons, one a line; by default those that the benchmark brings.
        tolerant: Score by the benchmark's tolerant metric.
        heldout: Held-out rows of each seed, asked twice.
    """

    seeds: Numbers = (0, 1, 2)
    benchmark: str = "house-rules"
    path: Path | None = None
    rules: Count | None = None
    choices: bool = False
    lessons: Path | None = None
    tolerant: bool = False
    heldout: Count = 120
    lm: str = "embedded"
    context: Annotated[int, Field(ge=128)] = 2048
    max_tokens: Count = 256


@parameters
class RetentionOptions(ModelOptions):
    """How many planted lessons come back from an aggregator, by how many reflections it reads.

    Args:
        aggregators: Aggregators, by comma.
        sizes: Reflections that are aggregated at once, by comma.
        mixed: Whether some facts are stated by several reflections in other words, and some
            contradicted by fewer; sizes then count facts, and what a book would serve is judged.
        fan_in: The most reflections one call may take, for aggregators that have such a number;
            else their defaults.
        seeds: Seeds, such as 0-4: each of the facts and of the aggregator's draws.
        law: Law of one call of the simulated service: attention, writing, reading, collapse,
            dilution, platitudes, unlimited.
        temperature: Of a model by name.
        constrained: Whether a model by name is held to a JSON schema, as embedded is: its service
            must enforce it.
    """

    aggregators: Names = ("single-call", "parallel-scan", "union")
    sizes: Sizes = (5, 10, 20, 40, 80)
    mixed: bool = False
    fan_in: Annotated[int, Field(ge=2)] | None = None
    seeds: Numbers = (0, 1, 2, 3, 4)
    law: OverloadLaw = "attention"
    max_tokens: Count = 4_096
    temperature: float = 0.0
    constrained: bool = False


@parameters
class RealOptions(ModelOptions):
    """Is it better than dspy.GEPA on a model? Equal budgets in tokens, in an order drawn before.

    Args:
        folder: Where the plan, a file for each run, and the page lie; the same folder goes on.
        methods: Methods, by comma; untouched is always read.
        seeds: Seeds, such as 0-2: each of every method.
        tokens: Tokens that each run may take, of both models.
        hours: Hours that the whole study may take: the budget is made to fit, by the speed that is
            measured first.
        benchmark: A benchmark's name.
        path: Where the benchmark's rows are, if not bundled.
        rules: How many rules house-rules has, if not its default: a small model obeys few of many.
        choices: Whether the answers of house-rules are codes to choose among: a small model obeys
            more of these.
        rule_set: Number of the rules and rows of house-rules; 0 by default, another has other
            rules.
        train: Training rows.
        validation: Validation rows.
        heldout: Held-out rows, read after each run.
        reflection_lm: Another model that writes.
        reflection_file: Another GGUF file that writes.
        reflection_sha256: Its SHA-256.
        reflection_api_base: Another address for the model that writes.
    """

    folder: str = "real"
    methods: Names = (
        "gepa",
        "naive-40",
        "pxn",
        "union",
        "parallel-scan",
        "single-call",
        "trunk",
        "few-shot",
    )
    seeds: Numbers = (0, 1, 2)
    tokens: Count = 100_000
    hours: AboveZero | None = None
    benchmark: str = "house-rules"
    path: Path | None = None
    rules: Count | None = None
    choices: bool = False
    rule_set: Annotated[int, Field(ge=0)] | None = None
    train: Count = 120
    validation: Count = 48
    heldout: Count = 120
    lm: str = "embedded"
    reflection_lm: str | None = None
    reflection_file: str | None = None
    reflection_sha256: str | None = None
    reflection_api_base: str | None = None

    def __post_init__(self) -> None:
        from combee_bench.real import METHODS

        super().__post_init__()
        for name in self.methods:
            if name not in METHODS:
                raise ArgumentValueError(
                    "methods", name, "is no method", f"Known: {', '.join(METHODS)}."
                )
        if "gepa" not in self.methods:
            raise ArgumentValueError(
                "methods", self.methods, "lacks gepa, what others are set against", "Add gepa."
            )
        if (self.reflection_lm or self.lm) == "embedded":
            unused, remedy = "reflection_api_base", "Name the reflection_lm."
        else:
            unused, remedy = "reflection_file", "Give reflection_lm=embedded, or leave it out."
        if (value := getattr(self, unused)) is not None:
            raise ArgumentValueError(unused, value, "is of no use to the model that writes", remedy)

    def _of_a_service(self) -> tuple[str | None, ...]:
        # The key may be that of a service that writes.
        return (self.api_base,)


@parameters
class TuneScanOptions(ServiceOptions):
    """Which copies and fan-in keep most of what reflections teach, on the model that will scan.

    Args:
        threads: Calls in flight at once.
        reflections: Reflections of one scan.
        copies: Values of p, by comma.
        fan_in: Values of the fan-in, by comma.
        max_calls: At most so many calls per scan.
        reflection_tokens: Mean tokens of one reflection.
        sizes: Items in one probe call, by comma.
        calls: Calls per kind and size.
        seed: Seed of everything random.
    """

    threads: Count = 8
    reflections: Count = 40
    copies: Sizes = (1, 2, 3)
    fan_in: Annotated[tuple[Annotated[int, Field(ge=2)], ...], Field(min_length=1)] = (8, 16, 32)
    max_calls: Count | None = None
    reflection_tokens: Count = 300
    sizes: Sizes = (4, 8, 16, 24, 32, 48, 96)
    calls: Count = 4
    seed: Annotated[int, Field(ge=0)] = 0
