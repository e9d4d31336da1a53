"""What each command measures. Every field is an option of the command, with the help that stands
here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import Field

from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.strategies import parameters

__all__ = [
    "CanaryOptions",
    "CapacityOptions",
    "CeilingOptions",
    "ClientOptions",
    "CompareOptions",
    "DamageOptions",
    "FaultsOptions",
    "FuzzOptions",
    "KillsOptions",
    "PlacementOptions",
    "RealOptions",
    "RedactionOptions",
    "RetentionOptions",
    "ScaleOptions",
    "ScanOptions",
    "SizesOptions",
    "SoakOptions",
    "SpeedOptions",
    "SweepOptions",
    "TuneScanOptions",
]

Count = Annotated[int, Field(ge=1)]
Rate = Annotated[float, Field(ge=0, le=1)]
Scale = Annotated[float, Field(ge=0, allow_inf_nan=False)]
AboveZero = Annotated[float, Field(gt=0, allow_inf_nan=False)]
OverloadLaw = Literal[
    "attention", "writing", "reading", "collapse", "dilution", "platitudes", "unlimited"
]
KilledRun = Literal["pareto", "trunk", "scan", "commit", "mlflow", "playbook", "many"]
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


def _each_once(name: str, values: tuple[Any, ...]) -> None:
    if len(set(values)) < len(values):
        raise ArgumentValueError(name, values, "names one twice", "Name each once.")


def _of_a_model(lm: str | None, **given: str | None) -> None:
    said = next((value for value in given.values() if value), None)
    if lm in (None, "embedded") and said:
        problem = "is not that of such a model, though something of one is given"
        raise ArgumentValueError(
            "lm", said, problem, "Name the model, such as --lm openai/my-model."
        )


@parameters
class SpeedOptions:
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
        lm: A model by DSPy's name, instead of the simulated service.
        api_base: Address of an OpenAI-compatible service that has it.
        api_key_env: Environment variable that holds its key.
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
    lm: str | None = None
    api_base: str | None = None
    api_key_env: str | None = None

    def __post_init__(self) -> None:
        _each_once("methods", self.methods)
        _each_once("seeds", self.seeds)
        _of_a_model(self.lm, api_base=self.api_base, api_key_env=self.api_key_env)
        if self.taught_accuracy < self.base_accuracy:
            remedy = "Being taught does not make an answer worse."
            raise ArgumentValueError(
                "taught_accuracy", self.taught_accuracy, "is below base_accuracy", remedy
            )


@parameters
class CompareOptions:
    """Several methods side by side: held-out score against seconds, rollouts, tokens, dollars and
    GPU-seconds.

    Args:
        methods: Methods, by comma; the first is the reference. Costs a point are above the serial
            one, gepa.
        seeds: Seeds, such as 0-4: each of the service and of every method.
        budget: Rollouts that each method may buy.
        config: A file of combee run: its program, metric, data and models, all rows.
        benchmark: A benchmark's name.
        task: Task of formula-mini: compute or route.
        path: Where the benchmark's rows are, if not bundled.
        train: Training examples; 168.
        validation: Validation examples; 48.
        heldout: Held-out examples, read before and after each run; 200.
        threads: Calls at once; 32, or 4 with the embedded model.
        time_scale: Wall seconds for one simulated second.
        margin: How many points worse a held-out score may be and still counts as no worse.
        lm: embedded, or a model by DSPy's name; simulated by default.
        reflection_lm: Another model that writes prompts.
        api_base: Address of an OpenAI-compatible service.
        api_key_env: Environment variable that holds the key.
        prices: Dollars per million prompt and completion tokens, by comma.
        gpus: GPUs behind the models: a search is charged them for as long as it takes.
    """

    methods: Names = ("gepa", "mipro", "combee")
    seeds: Numbers = (0,)
    budget: Count = 600
    config: Path | None = None
    benchmark: str | None = None
    task: str | None = None
    path: Path | None = None
    train: Count | None = None
    validation: Count | None = None
    heldout: Count | None = None
    threads: Count | None = None
    time_scale: AboveZero = 0.2
    margin: Margin = MARGIN
    lm: str | None = None
    reflection_lm: str | None = None
    api_base: str | None = None
    api_key_env: str | None = None
    prices: tuple[Scale, Scale] | None = None
    gpus: AboveZero | None = None

    def __post_init__(self) -> None:
        _each_once("methods", self.methods)
        _each_once("seeds", self.seeds)
        given = {
            "api_base": self.api_base,
            "api_key_env": self.api_key_env,
            "reflection_lm": self.reflection_lm,
        }
        _of_a_model(self.lm, **given)
        if self.task is not None and self.benchmark not in (None, "formula-mini"):
            raise ArgumentValueError(
                "task", self.task, "is a choice of formula-mini only", "Leave it out."
            )
        if self.config is None:
            self.check_budget(self.validation or VALIDATION)
            return
        of_a_benchmark = ("benchmark", "task", "path", "train", "validation", "heldout", "lm")
        for name in of_a_benchmark:
            if (value := getattr(self, name)) is not None:
                raise ArgumentValueError(
                    name, value, "stands in the file already", "Leave it out, or config."
                )

    def check_budget(self, validation: int) -> None:
        """Refuse a budget that does not pay for two validations of so many rows."""
        if self.budget < 2 * validation:
            remedy = f"Give at least {2 * validation}, better ten times that."
            raise ArgumentValueError(
                "budget", self.budget, "does not pay for two validations", remedy
            )


@parameters
class CeilingOptions:
    """What a model answers without lessons, and with all of them, written by hand: what there is to
    learn.

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
        lm: embedded, or a model by DSPy's name.
        file: A GGUF file for embedded, or its parts by comma, in order; by default
            SmolLM2-135M-Instruct.
        sha256: SHA-256 of the file, checked before it is loaded.
        slots: Calls at once.
        context: Longest prompt plus answer in tokens, for embedded.
        max_tokens: Longest answer in tokens.
        api_base: Address of an OpenAI-compatible service.
        api_key_env: Environment variable that holds the key.
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
    file: str | None = None
    sha256: str | None = None
    slots: Count = 4
    context: Annotated[int, Field(ge=128)] = 2048
    max_tokens: Count = 256
    api_base: str | None = None
    api_key_env: str | None = None

    def __post_init__(self) -> None:
        _each_once("seeds", self.seeds)
        _of_a_model(self.lm, api_base=self.api_base, api_key_env=self.api_key_env)
        if self.lm != "embedded" and self.file is not None:
            raise ArgumentValueError(
                "file", self.file, "is for the embedded model only", "Leave out lm, or file."
            )


@parameters
class ClientOptions:
    """Rollouts a second that one process sustains, and what each costs it, on a service that
    answers at once.

    Args:
        rows: What is measured, by comma.
        rollouts: Rollouts of one measurement, of one call each.
        workers: Rollouts at once.
        times: Measurements of each row; the median counts.
    """

    rows: Names = (
        "evaluate-plain",
        "evaluate-pooled",
        "threads-plain",
        "threads-pooled",
        "asyncio-pooled",
        "compile-pooled",
    )
    rollouts: Count = 2_000
    workers: Count = 64
    times: Count = 3


@parameters
class VerdictsOptions:
    """How often each verdict that is printed or acted on is wrong, over simulated studies of which
    the truth is known.

    Args:
        studies: Simulated studies of each verdict.
        margin: Margin of non-inferiority, in points.
        seed: Seed of the studies.
    """

    studies: Count = 2_000
    margin: Margin = MARGIN
    seed: Annotated[int, Field(ge=0)] = 0


@parameters
class DiagnoseOptions:
    """How often combee diagnose is wrong, over simulated serial searches of which the truth is
    known.

    Args:
        seeds: Searches of each kind.
        rows: Validation examples.
        luck: Share of answers that a coin decides.
    """

    seeds: Numbers = tuple(range(100))
    rows: Count = 200
    luck: Annotated[float, Field(ge=0, le=1)] = 0.1


@parameters
class RedactionOptions:
    """Personal data in made-up lines that redaction misses, and what it takes for personal data and
    is none.

    Args:
        each: Lines of each form.
        seed: Seed of the lines.
    """

    each: Count = 20
    seed: Annotated[int, Field(ge=0)] = 0


@parameters
class CanaryOptions:
    """What callers of a canary notice, how fast servers follow the registry, and how often its rule
    is wrong.

    Args:
        parts: rule, calls (no HTTP, no program to wait for), load, switch (two processes on SQLite,
            and one that is killed while it changes what serves), server (the same on an MLflow
            server).
        canaries: Simulated canaries for each true difference.
        pairs: Pairs that each of them may have.
        looks: How often each is looked at.
        epsilons: Margins, in points.
        discordance: Percent of pairs whose two scores differ.
        requests: Requests of each load.
        concurrency: Requests at once.
        shadow: Share of requests that are shadowed.
        answer_seconds: What the simulated program takes.
        ttl: Seconds between two looks of a server at the registry.
        kills: How often a process is killed that promotes and rolls back.
        seed: Seed of the simulated canaries and of the moments of kills.
    """

    parts: Annotated[
        tuple[Literal["rule", "calls", "load", "switch", "server"], ...], Field(min_length=1)
    ] = (
        "rule",
        "calls",
        "load",
        "switch",
        "server",
    )
    canaries: Count = 1000
    pairs: Count = 20_000
    looks: Count = 10
    epsilons: Annotated[tuple[float, ...], Field(min_length=1)] = (0.5, 2.0)
    discordance: Annotated[float, Field(gt=1, le=100)] = 10.0
    requests: Count = 2000
    concurrency: Count = 16
    shadow: Rate = 0.05
    answer_seconds: Scale = 0.02
    ttl: AboveZero = 1.0
    kills: Count = 20
    seed: Annotated[int, Field(ge=0)] = 0

    def __post_init__(self) -> None:
        if max(self.epsilons) > self.discordance:
            remedy = "No more points can be lost than pairs differ."
            raise ArgumentValueError(
                "epsilons", self.epsilons, f"hold more than {self.discordance:g} points", remedy
            )


@parameters
class KillsOptions:
    """Runs that are killed at random moments and resumed, beside the same runs left alone.

    Args:
        runs: Runs, by comma: ``pareto``, ``trunk``, ``playbook``, ``many`` (three tasks in one
            journal), which are killed anywhere; ``scan``, killed after a call of a scan;
            ``commit``, in one; ``mlflow``, while it is told.
        kills: Kills of each run.
        path: Rows of the Formula benchmark, instead of formula-mini's.
        examples: Training examples, which make one epoch of four updates.
        validation: Validation examples.
        workers: Calls in flight.
        time_scale: Wall seconds for one simulated second.
        seed: Seed of everything random, the moments of the kills included.
    """

    runs: Annotated[tuple[KilledRun, ...], Field(min_length=1)] = (
        "pareto",
        "trunk",
        "scan",
        "commit",
        "mlflow",
        "playbook",
        "many",
    )
    kills: Count = 5
    path: Path | None = None
    examples: Count = 120
    validation: Count = 30
    workers: Count = 16
    time_scale: Scale = 0.02
    seed: Annotated[int, Field(ge=0)] = 0


@parameters
class FaultsOptions:
    """A compile against a service that misbehaves, once for each fault, beside the same compile
    left alone.

    Args:
        faults: Faults, by comma; all of them where none is named. ``outage``, ``dead`` and ``slow``
            are whole services.
        rate: Share of the requests that a fault spoils; a request that is repeated draws again.
        outage: Seconds that the service is away in the middle of the run.
        client: ``dspy`` for ``dspy.LM`` as it is, ``pooled`` for the fast one, ``asyncio`` for that
            on an event loop.
        timeout: The LM's, in seconds.
        examples: Training examples, which make one epoch of four updates.
        validation: Validation examples.
        heldout: Examples that the learned program is asked, by a service that behaves.
        workers: Calls in flight.
        time_scale: Wall seconds for one simulated second.
        seed: Seed of everything random, which requests are spoiled included.
    """

    faults: Names | None = None
    rate: Rate = 0.3
    outage: AboveZero = 5.0
    client: Literal["dspy", "pooled", "asyncio"] = "dspy"
    timeout: AboveZero = 2.0
    examples: Count = 120
    validation: Count = 30
    heldout: Count = 60
    workers: Count = 32
    time_scale: Scale = 0.01
    seed: Annotated[int, Field(ge=0)] = 0


@parameters
class FuzzOptions:
    """Answers, files and texts that hold anything, given to all that reads them.

    Args:
        outputs: Hostile answers that runs get, at least.
        rate: Share of the answers that are hostile.
        files: Files of each kind.
        texts: Short texts for each reader.
        longest: Characters of a long text.
        seed: Seed of everything random.
    """

    outputs: Count = 2_000
    rate: Rate = 0.5
    files: Count = 300
    texts: Count = 300
    longest: Count = 1_000_000
    seed: Annotated[int, Field(ge=0)] = 0


@parameters
class DamageOptions:
    """Journals with bits flipped, ends cut off and sectors lost: whether one is taken for what was
    written.

    Args:
        times: Damages of each kind, each to a fresh copy.
        effects: Effects in the journal.
        seed: Seed of the places.
    """

    times: Count = 430
    effects: Count = 60
    seed: Annotated[int, Field(ge=0)] = 0


@parameters
class SoakOptions:
    """What a process holds after many rollouts with faults, and after many compiles. Needs Linux.

    Args:
        rollouts: Rollouts of the one long run.
        compiles: Compiles after it in the same process.
        faults: Share of attempts that fail, four ways alike.
        workers: Calls in flight.
        seed: Seed of everything random.
    """

    rollouts: Count = 5_000
    compiles: Count = 30
    faults: Rate = 0.1
    workers: Count = 32
    seed: Annotated[int, Field(ge=0)] = 0


@parameters
class ScaleOptions:
    """A scan alone, from ten reflections to ten thousand: seconds, calls, tokens, depth, CPU and
    memory.

    Args:
        sizes: Reflections of each scan, by comma.
        aggregators: Names, by comma.
        slots: Calls served at once.
        time_scale: Wall seconds for one simulated second; 0 says nothing about seconds.
        seed: Seed of everything random.
    """

    sizes: Sizes = (10, 30, 100, 300, 1_000, 3_000, 10_000)
    aggregators: Names = ("union", "parallel-scan")
    slots: Count = 64
    time_scale: Scale = 1.0
    seed: Annotated[int, Field(ge=0)] = 0


@parameters
class SweepOptions:
    """Batch size × aggregator: what one epoch teaches when every update is kept.

    Args:
        aggregators: Names, by comma, each with its constructor's defaults.
        sizes: Examples a minibatch, by comma.
        laws: Laws of the simulated service, by comma: attention, writing, reading, collapse,
            dilution, platitudes, unlimited.
        seeds: Seeds, such as 0-9: each draws its own rows, order and answers.
        examples: Training examples: one epoch.
        heldout: Held-out examples, read at the end of each run.
        task: Task of formula-mini: compute or route.
        workers: Calls in flight.
        lm: embedded, or a model by DSPy's name; simulated by default.
        api_base: Address of an OpenAI-compatible service.
        api_key_env: Environment variable that holds the key.
    """

    aggregators: Names = ("single-call", "top-k", "summarize", "parallel-scan", "union")
    sizes: Sizes = (3, 10, 40, 120, 240)
    laws: Annotated[tuple[OverloadLaw, ...], Field(min_length=1)] = get_args(OverloadLaw)
    seeds: Numbers = tuple(range(10))
    examples: Count = 240
    heldout: Count = 60
    task: str = "compute"
    workers: Count = 16
    lm: str | None = None
    api_base: str | None = None
    api_key_env: str | None = None

    def __post_init__(self) -> None:
        _of_a_model(self.lm, api_base=self.api_base, api_key_env=self.api_key_env)
        if max(self.sizes) > self.examples:
            raise ArgumentValueError(
                "sizes", self.sizes, "holds more than one epoch", f"Give 1 to {self.examples}."
            )


@parameters
class ScanOptions:
    """Show one scan: which reflections each call read, what it wrote, and where lessons were lost.

    Args:
        reflections: How many rollouts the update has.
        aggregator: parallel-scan, or union.
        law: Law of one call, of those of combee bench sweep.
        log_dir: Where the run's journal and page are kept; by default a temporary folder.
        seed: Seed of everything random.
    """

    reflections: Annotated[int, Field(ge=4)] = 40
    aggregator: Literal["parallel-scan", "union"] = "parallel-scan"
    law: OverloadLaw = "reading"
    log_dir: str | None = None
    seed: Annotated[int, Field(ge=0)] = 0


@parameters
class RetentionOptions:
    """How many planted lessons come back from an aggregator, by how many reflections it is given at
    once.

    Args:
        aggregators: Aggregators, by comma.
        sizes: Reflections that are aggregated at once, by comma.
        mixed: Whether some facts are stated by several reflections in other words, and some
            contradicted by fewer; sizes then count facts, and what a book would serve is judged.
        fan_in: The most reflections one call may take, for aggregators that have such a number;
            else their defaults.
        seeds: Seeds, such as 0-4: each of the facts and of the aggregator's draws.
        lm: embedded, or a model by DSPy's name; simulated by default.
        law: Law of one call of the simulated service, of those of combee bench sweep.
        file: A GGUF file for embedded, or its parts by comma, in order; by default
            SmolLM2-135M-Instruct.
        sha256: SHA-256 of the file, checked before it is loaded.
        slots: Calls at once.
        context: Longest prompt plus answer in tokens, for embedded.
        max_tokens: Longest answer in tokens.
        temperature: Of a model by name.
        api_base: Address of an OpenAI-compatible service.
        api_key_env: Environment variable that holds the key.
    """

    aggregators: Names = ("single-call", "top-k", "summarize", "parallel-scan", "union")
    sizes: Sizes = (5, 10, 20, 40, 80)
    mixed: bool = False
    fan_in: Annotated[int, Field(ge=2)] | None = None
    seeds: Numbers = (0, 1, 2, 3, 4)
    lm: str | None = None
    law: OverloadLaw = "attention"
    file: str | None = None
    sha256: str | None = None
    slots: Count = 4
    context: Annotated[int, Field(ge=1024)] = 16_384
    max_tokens: Count = 4_096
    temperature: float = 0.0
    api_base: str | None = None
    api_key_env: str | None = None

    def __post_init__(self) -> None:
        for name in ("aggregators", "sizes", "seeds"):
            _each_once(name, getattr(self, name))
        _of_a_model(self.lm, api_base=self.api_base, api_key_env=self.api_key_env)
        if self.lm != "embedded" and self.file is not None:
            raise ArgumentValueError(
                "file", self.file, "is for the embedded model only", "Give --lm embedded."
            )


@parameters
class RealOptions:
    """Is it better than dspy.GEPA on a model? Methods at an equal budget in tokens, in an order
    drawn beforehand.

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
        lm: Model of the program, by DSPy's name, or embedded.
        file: A GGUF file for embedded, or its parts by comma, in order; by default
            SmolLM2-135M-Instruct.
        sha256: SHA-256 of the file, checked before it is loaded.
        api_base: Address of an OpenAI-compatible service.
        reflection_lm: Another model that writes.
        reflection_file: Another GGUF file that writes.
        reflection_sha256: Its SHA-256.
        reflection_api_base: Another address for the model that writes.
        api_key_env: Environment variable that holds the key.
        slots: Calls at once.
        context: Longest prompt plus answer in tokens, for embedded.
        max_tokens: Longest answer in tokens.
    """

    folder: str = "real"
    methods: Names = (
        "gepa",
        "naive-40",
        "pxn",
        "union",
        "parallel-scan",
        "single-call",
        "top-k",
        "summarize",
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
    file: str | None = None
    sha256: str | None = None
    api_base: str | None = None
    reflection_lm: str | None = None
    reflection_file: str | None = None
    reflection_sha256: str | None = None
    reflection_api_base: str | None = None
    api_key_env: str | None = None
    slots: Count = 4
    context: Annotated[int, Field(ge=1024)] = 16_384
    max_tokens: Count = 1_024

    def __post_init__(self) -> None:
        from combee_bench.real import METHODS

        _each_once("methods", self.methods)
        _each_once("seeds", self.seeds)
        for name in self.methods:
            if name not in METHODS:
                raise ArgumentValueError(
                    "methods", name, "is no method", f"Known: {', '.join(METHODS)}."
                )
        if "gepa" not in self.methods:
            raise ArgumentValueError(
                "methods", self.methods, "lacks gepa, what others are set against", "Add gepa."
            )
        if self.lm != "embedded" and self.file is not None:
            raise ArgumentValueError(
                "file", self.file, "is for the embedded model only", "Leave out lm, or file."
            )
        if self.lm == "embedded" and self.api_base is not None:
            raise ArgumentValueError(
                "api_base", self.api_base, "is not that of the embedded model", "Name the lm."
            )
        if (self.reflection_lm or self.lm) == "embedded":
            unused, remedy = "reflection_api_base", "Name the reflection_lm."
        else:
            unused, remedy = "reflection_file", "Give reflection_lm=embedded, or leave it out."
        if (value := getattr(self, unused)) is not None:
            raise ArgumentValueError(unused, value, "is of no use to the model that writes", remedy)


@parameters
class PlacementOptions:
    """Where copies of reflections come to lie: which meet, which lie double, and what level 1 of a
    scan keeps.

    Args:
        sizes: Reflections, by comma.
        copies: Values of p, by comma.
        placements: distinct or plain, by comma.
        windows: How many shards a copy may travel, by comma; 0 for no bound.
        fan_in: The most reflections one call may take; by default no number bounds it.
        draws: Shuffles of each.
        law: Law of one call, of those of combee bench sweep that count items.
        seed: Seed of everything random.
    """

    sizes: Sizes = (4, 6, 8, 16, 40, 80, 240)
    copies: Sizes = (1, 2)
    placements: Annotated[tuple[Literal["distinct", "plain"], ...], Field(min_length=1)] = (
        "distinct",
        "plain",
    )
    windows: Numbers = (0, 4)
    fan_in: Annotated[int, Field(ge=2)] | None = None
    draws: Count = 100
    law: Literal["attention", "collapse", "dilution", "unlimited"] = "dilution"
    seed: Annotated[int, Field(ge=0)] = 0


@parameters
class CapacityOptions:
    """Whether the adaptive limit finds the capacity of a service that nobody told it.

    Args:
        modes: What the service does beyond its slots, by comma: reject, queue, or changing
            (rejects, and halves its slots in the middle).
        clients: plain (dspy.LM) or pooled, by comma.
        slots: Calls served at once.
        rollouts: Rollouts of each run, of one call each.
        seconds: Median simulated seconds of a call; they are lognormal with sigma 0.35.
        retry_after: Simulated seconds of Retry-After.
        time_scale: Wall seconds for one simulated second, above 0.
        ceiling: The most rollouts in flight.
        seed: Seed of the service.
    """

    modes: Annotated[tuple[Literal["reject", "queue", "changing"], ...], Field(min_length=1)] = (
        "reject",
        "queue",
        "changing",
    )
    clients: Annotated[tuple[Literal["plain", "pooled"], ...], Field(min_length=1)] = (
        "plain",
        "pooled",
    )
    slots: Annotated[int, Field(ge=2)] = 37
    rollouts: Annotated[int, Field(ge=20)] = 1_500
    seconds: AboveZero = 2.0
    retry_after: Scale = 1.0
    time_scale: AboveZero = 1.0
    ceiling: Count = 512
    seed: Annotated[int, Field(ge=0)] = 0


@parameters
class SizesOptions:
    """Which batch size the controller picks, by stated laws of an epoch's delay and by recorded
    runs.

    Args:
        taus: τ, by comma, each a share of the law's slope at the base.
        alphas: Exponents of the laws, by comma.
        floors: Floors of the laws, by comma: shares of an epoch at ten examples a batch that no
            size saves.
        base: The size whose slope is the reference.
        examples: Training examples: N.
        noise: Standard deviation of the log of a delay.
        log_dirs: Folders of recorded runs, by comma, whose delays are taken as well.
        seed: Seed of the noise.
    """

    taus: Annotated[tuple[AboveZero, ...], Field(min_length=1)] = (
        0.004,
        0.008,
        0.016,
        0.032,
        0.064,
    )
    alphas: Annotated[tuple[AboveZero, ...], Field(min_length=1)] = (0.3, 0.5, 0.7, 0.84, 1.0)
    floors: tuple[Rate, ...] = (0.0, 0.1)
    base: Count = 10
    examples: Count = 1000
    noise: Scale = 0.05
    log_dirs: tuple[str, ...] = ()
    seed: Annotated[int, Field(ge=0)] = 0


@parameters
class TuneScanOptions:
    """Which copies and fan-in keep most of what reflections teach, on the model that will scan.

    Args:
        lm: Model, by DSPy's name, or embedded; a simulated service by default.
        api_base: Address of an OpenAI-compatible service.
        api_key_env: Environment variable that holds the key.
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

    lm: str | None = None
    api_base: str | None = None
    api_key_env: str | None = None
    threads: Count = 8
    reflections: Count = 40
    copies: Sizes = (1, 2, 3)
    fan_in: Annotated[tuple[Annotated[int, Field(ge=2)], ...], Field(min_length=1)] = (8, 16, 32)
    max_calls: Count | None = None
    reflection_tokens: Count = 300
    sizes: Sizes = (4, 8, 16, 24, 32, 48, 96)
    calls: Count = 4
    seed: Annotated[int, Field(ge=0)] = 0

    def __post_init__(self) -> None:
        _of_a_model(self.lm, api_base=self.api_base, api_key_env=self.api_key_env)
