"""What ``combee bench speed`` measures, checked before anything runs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import dspy

from combee_dspy.bench.speed_methods import METHODS, lacking
from combee_dspy.benchmarks import Benchmark, Split, load_benchmark
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.lms import CapacityModel, ReasoningLaw, SimulatedConfig

__all__ = ["LABEL", "Attention", "Grain", "Program", "SpeedOptions", "check_options", "data_source", "load_rows"]

LABEL = "simulated service, no language model"
"""What is said wherever figures of the simulated service are shown."""

Program = Literal["chain-of-thought", "predict"]
"""A first program of one step: one that reasons before it answers, and one that answers at once."""

Attention = Literal["items", "reading"]
"""What the simulated model's attention counts: the items of a prompt, or their tokens."""

Grain = Literal["mistake", "formula"]
"""What one lesson of the simulated model covers: one kind of mistake with a formula, or all about it."""

_COVERED: Mapping[Grain, str] = {"mistake": "formula and kind of mistake", "formula": "formula"}

_CAPACITIES: Mapping[Attention, CapacityModel] = {"items": CapacityModel(), "reading": CapacityModel.reading()}

# Benchmarks that make as many rows as they are asked for. Others are cut.
_MADE_TO_SIZE = ("formula-mini",)


@dataclass(frozen=True, slots=True)
class SpeedOptions:
    """What is measured.

    Attributes:
        methods: Names out of :data:`METHODS`; the first is the reference. They run in this order,
            rotated from one repeat to the next.
        examples: Training examples, which make one epoch.
        validation: Validation examples.
        heldout: Held-out examples, read once before and once after each run.
        slots: Calls that the service serves at once; also the threads of every method.
        time_scale: Wall seconds per simulated second, above 0.
        repeats: Timed runs of each method; the figures are of the median one.
        peer_repeats: Timed runs of ``dspy.GEPA``'s methods, which take most of the time; ``None`` for as many.
        seed: Seed of the service and of every method in the timed runs.
        seeds: Seeds on which held-out is compared. Empty: the timed seed alone, as it was timed.
        program: What is optimized: ``dspy.ChainOfThought`` or ``dspy.Predict`` of the benchmark's signature.
        reasoning_tokens: Median tokens of the simulated model's reasoning (see
            :class:`combee_dspy.lms.ReasoningLaw`). Set by the peer alone: with 300 a rollout takes
            0.5 + 300 / 60 = 5.5 s in the median, about what an iteration of the serial peer implied
            in the measured comparison whose latencies the service has.
        reasoning_spread: Standard deviation of the log of these tokens. 0, so that latency is the law of that
            comparison and nothing else spreads it; answers whose lengths differ widen every barrier.
        attention: Which law says what the simulated model takes in of a crowded prompt (see
            :class:`combee_dspy.lms.CapacityModel`): 12 items, or with ``"reading"`` items of about 5,000 tokens.
            The two agree on raw records; on lists of lessons, which are short, the second takes in more.
        lessons: What one lesson of the simulated model covers: ``"mistake"``, one kind of mistake with a formula,
            or ``"formula"``, all about it. The first 240 questions of the Formula benchmark need 119 to 131 lessons
            by mistake (ten seeds) and 50 by formula; there were 123 in the measured comparison whose latencies
            the service has. The bundled formula-mini needs 80 to 82 by mistake. Answers must be numbers.
        temperature: Temperature of both LMs, 0 or above; ``None`` says nothing of one to an endpoint, and 0 to the
            simulated one. At 0 that answers a question by what it was taught alone, whatever the prompt around it;
            above, however little, every call is a draw of its own.
        base_accuracy: Share of questions that the simulated model answers rightly untaught. At 0, and 1 for the
            next, a question is answered rightly where its lesson was taught and nowhere else: the service's law
            without luck. Nearly every lesson improves its minibatch then, so that the serial peer accepts and
            validates nearly every child, which favours large multiples over it. The ACE paper
            (arXiv 2510.04618) reports 0.675 for DeepSeek-V3.1 on Formula, where multiples are smaller.
        taught_accuracy: Share of questions that it answers rightly when it has been taught what they need; the
            others are too hard for it. The best that the same paper's methods reach with that model is 0.855.
        benchmark: A benchmark's name.
        params: Its parameters, without the sizes.
        endpoint: Address of an OpenAI-compatible service; ``None`` for the simulated one.
        model: The model's name there.
        api_key_env: Environment variable that holds the key for it.
    """

    methods: tuple[str, ...] = ("gepa", "combee")
    examples: int = 240
    validation: int = 60
    heldout: int = 100
    slots: int = 64
    time_scale: float = 0.1
    repeats: int = 1
    peer_repeats: int | None = None
    seed: int = 0
    seeds: tuple[int, ...] = ()
    program: Program = "chain-of-thought"
    reasoning_tokens: float = 300.0
    reasoning_spread: float = 0.0
    attention: Attention = "reading"
    lessons: Grain = "mistake"
    temperature: float | None = None
    base_accuracy: float = 0.0
    taught_accuracy: float = 1.0
    benchmark: str = "formula-mini"
    params: Mapping[str, Any] = field(default_factory=lambda: {"task": "compute"})
    endpoint: str | None = None
    model: str | None = None
    api_key_env: str | None = None

    @property
    def simulated(self) -> bool:
        """Whether no language model is involved."""
        return self.endpoint is None

    @property
    def label(self) -> str:
        """What is said wherever the figures are shown."""
        return LABEL if self.simulated else f"model {self.model}"

    @property
    def law(self) -> str | None:
        """How long an answer takes; ``None`` where only the service knows.

        The parameters are those of the project's measured comparison of optimizers on
        one epoch; they describe no particular provider (see :class:`combee_dspy.lms.LatencyLaw`).
        """
        if not self.simulated:
            return None
        config = self.service()
        latency, capacity = config.latency, config.capacity
        said = f"({latency.ttft:g} s + output tokens / {latency.tokens_per_second:g}) × lognormal({latency.sigma:g})"
        tokens = capacity.attended_tokens
        most = f"at most {capacity.attended_items} items" if tokens is None else f"items of about {tokens:,} tokens"
        said = f"latency {said}; {most} attended in a call"
        said = f"{said}; a lesson for each {_COVERED[self.lessons]}"
        said = f"{said}; right untaught {self.base_accuracy:.1%}, taught {self.taught_accuracy:.1%}"
        said = f"{said}; temperature {self.temperature or 0:g}"
        law = config.reasoning
        if law is None:
            return said
        spread = f" × lognormal({law.sigma:g})" if law.sigma else ""
        return f"{said}; reasoning {law.tokens:g} tokens{spread}"

    @property
    def lm_settings(self) -> dict[str, float]:
        """What the LMs are told beside their address."""
        return {} if self.temperature is None else {"temperature": self.temperature}

    def service(self, seed: int = 0, *, timed: bool = True) -> SimulatedConfig:
        """Return the settings of the simulated service.

        Args:
            seed: Its seed.
            timed: Whether latencies are waited for, and calls kept.
        """
        return SimulatedConfig(
            seed=seed,
            slots=self.slots,
            time_scale=self.time_scale if timed else 0.0,
            capacity=_CAPACITIES[self.attention],
            log_calls=timed,
            reasoning=ReasoningLaw(self.reasoning_tokens, self.reasoning_spread)
            if self.program == "chain-of-thought"
            else None,
        )

    @property
    def unit(self) -> str:
        """What the seconds are."""
        return "simulated s" if self.simulated else "s"


def check_options(options: SpeedOptions) -> None:  # noqa: C901 - one refusal after the other
    """Refuse what cannot be measured.

    Raises:
        ArgumentValueError: An option cannot be used.
    """
    known = f"Methods: {', '.join(METHODS)}."
    if not options.methods:
        raise ArgumentValueError("methods", options.methods, "names no method", known)
    for name in options.methods:
        _check_method(name, options, known)
    if options.time_scale <= 0:
        raise ArgumentValueError("time_scale", options.time_scale, "is not above 0", "Nothing would be measured.")
    if options.program not in get_args(Program):
        remedy = f"Give one of {', '.join(get_args(Program))}."
        raise ArgumentValueError("program", options.program, "is no program", remedy)
    if options.attention not in get_args(Attention):
        remedy = f"Give one of {', '.join(get_args(Attention))}."
        raise ArgumentValueError("attention", options.attention, "is no law of attention", remedy)
    if options.lessons not in get_args(Grain):
        remedy = f"Give one of {', '.join(get_args(Grain))}."
        raise ArgumentValueError("lessons", options.lessons, "is not what a lesson can cover", remedy)
    if options.temperature is not None and not 0 <= options.temperature < math.inf:
        remedy = "Give 0, or a number above it, which makes the LMs sample."
        raise ArgumentValueError("temperature", options.temperature, "is no number from 0 on", remedy)
    if not 0 <= options.base_accuracy <= 1:
        raise ArgumentValueError("base_accuracy", options.base_accuracy, "is not in [0, 1]", "It is a share.")
    if not options.base_accuracy <= options.taught_accuracy <= 1:
        remedy = "Being taught does not make an answer worse."
        raise ArgumentValueError(
            "taught_accuracy", options.taught_accuracy, "is below base_accuracy or above 1", remedy
        )
    options.service()
    if options.repeats < 1:
        raise ArgumentValueError("repeats", options.repeats, "is below 1", "Nothing would be measured.")
    most = options.repeats if options.peer_repeats is None else options.peer_repeats
    if not 1 <= most <= options.repeats:
        remedy = f"Give 1 to {options.repeats}, the repeats of the others."
        raise ArgumentValueError("peer_repeats", most, "cannot be used", remedy)
    if len(set(options.seeds)) < len(options.seeds):
        raise ArgumentValueError("seeds", options.seeds, "names one twice", "Name each once.")
    if (options.endpoint is None) != (options.model is None):
        remedy = "Give both, or none for the simulated service."
        raise ArgumentValueError("endpoint and model", options.endpoint or options.model, "stands alone", remedy)


def _check_method(name: str, options: SpeedOptions, known: str) -> None:
    if name not in METHODS:
        raise ArgumentValueError("methods", name, "is no method", known)
    if options.methods.count(name) > 1:
        raise ArgumentValueError("methods", name, "is named twice", "Name each method once.")
    before = METHODS[name].follows
    if before and before not in options.methods[: options.methods.index(name)]:
        problem = f"takes the size that {before} picks, which does not come before it"
        raise ArgumentValueError("methods", name, problem, f"Name {before} first.")
    if lacking(name):
        raise ArgumentValueError("methods", name, f"needs {lacking(name)}, which this version lacks", "Leave it out.")


def load_rows(options: SpeedOptions) -> Benchmark:
    """Return the benchmark, cut to the sizes asked for.

    Raises:
        ArgumentValueError: It has fewer rows than asked for.
        DataSourceError: It cannot be read.
    """
    sizes = {"train": options.examples, "validation": options.validation, "heldout": options.heldout}
    made = sizes if options.benchmark in _MADE_TO_SIZE else {}
    loaded = load_benchmark(options.benchmark, **{**options.params, **made})
    train, validation, heldout = (_first(split, sizes[split.name]) for split in loaded.splits)
    module = dspy.ChainOfThought if options.program == "chain-of-thought" else dspy.Predict
    signature = loaded.signature
    return replace(loaded, train=train, validation=validation, heldout=heldout, program=lambda: module(signature))


def data_source(options: SpeedOptions) -> str:
    """Return where the rows come from, in one line.

    Raises:
        ArgumentValueError: The benchmark has fewer rows than asked for.
        DataSourceError: It cannot be read.
    """
    return load_rows(options).source


def _first(split: Split, size: int) -> Split:
    if not 1 <= size <= len(split):
        name = "examples" if split.name == "train" else split.name
        remedy = f"Give 1 to {len(split)}."
        raise ArgumentValueError(name, size, f"cannot be taken from {len(split)} rows of {split.name}", remedy)
    return Split(split.name, split.examples[:size], split.row_hashes[:size])
