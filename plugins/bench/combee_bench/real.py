"""Is it better than ``dspy.GEPA`` on a model? Methods at an equal budget in tokens.

Each run of a method is one file in a folder, with its log beside it. A study that is interrupted
goes on with the first run that has none.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import dspy
from gepa.strategies.proposal_sampling import PxNSampling
from rich.table import Table

from combee_bench.endpoints import Endpoint, as_proposer, model_lm
from combee_bench.options import RealOptions
from combee_bench.scoring import scores_of
from combee_bench.statistics import Side, side_by_side
from combee_bench.surroundings import environment, first_rows, load_rows, quietly
from combee_bench.tables import by_rows
from combee_dspy import Budget, Combee, Search, Validation
from combee_dspy.aggregators import Union
from combee_dspy.artifacts import Instruction
from combee_dspy.benchmarks import LoadedBenchmark
from combee_dspy.costs import metered, totals
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.files import check_folder, read_plain, write_plain
from combee_dspy.lms import ConstrainedJSONAdapter
from combee_dspy.presets import paper
from combee_dspy.reflections import normalised
from combee_dspy.streams import derive

__all__ = [
    "METHODS",
    "Learned",
    "Method",
    "RealRun",
    "count_rules",
    "learn",
    "line",
    "prompt_of",
    "run",
    "summary",
    "table",
]

UNTOUCHED = "untouched"
_NO_LIMIT = 1_000_000
_MARGIN = 2.0
_PROBED = 8

Spent = Callable[[], int]
Method = Callable[[LoadedBenchmark, dspy.LM, int, RealOptions, Spent, str], Any]
"""Makes an optimizer of rows, who writes, seed, options, tokens spent so far and its folder."""


@dataclass(frozen=True, slots=True)
class Learned:
    """What a method came to: its program, the tokens of its search by role, its wall seconds."""

    program: dspy.Module
    tokens: Mapping[str, int]
    seconds: float


@dataclass(frozen=True, slots=True)
class RealRun:
    """One run of one method.

    Attributes:
        method: Its name.
        seed: Its seed.
        before: Held-out score of the student per row.
        after: Held-out score of what the method chose, in the same order.
        tokens: Tokens of the search, by role: those of held-out readings are in no method's budget.
        seconds: Wall seconds of the search.
        kept: Rules of the benchmark, written by hand, that the prompt holds.
        rules: How many there are.
        prompt: What the chosen program says, with its worked examples.
        versions: Of the libraries.
    """

    method: str
    seed: int
    before: tuple[float, ...] = field(repr=False)
    after: tuple[float, ...] = field(repr=False)
    tokens: Mapping[str, int]
    seconds: float
    kept: int
    rules: int
    prompt: str
    versions: Mapping[str, str]


def _gepa(
    rows: LoadedBenchmark,
    lm: dspy.LM,
    seed: int,
    options: RealOptions,
    spent: Spent,
    log_dir: str,
    **chosen: Any,
) -> Any:
    # GEPA looks at its stoppers between iterations, and may pass the budget by one.
    gepa_kwargs = {
        "stop_callbacks": [lambda state: spent() >= options.tokens],
        **chosen.pop("gepa_kwargs", {}),
    }
    return dspy.GEPA(
        rows.metric,
        max_metric_calls=_NO_LIMIT,
        reflection_lm=lm,
        num_threads=options.slots,
        seed=seed,
        log_dir=log_dir,
        gepa_kwargs=gepa_kwargs,
        **chosen,
    )


def _combee(
    rows: LoadedBenchmark,
    lm: dspy.LM,
    seed: int,
    options: RealOptions,
    spent: Spent,
    log_dir: str,
    **chosen: Any,
) -> Any:
    return Combee(
        rows.metric,
        budget=Budget(tokens=options.tokens),
        reflection_lm=lm,
        num_threads=options.slots,
        seed=seed,
        validation=Validation(probe=False),
        tracker=(),
        log_dir=log_dir,
        **chosen,
    )


_PARETO = Search(keep="pareto")
_OLD: Mapping[str, Any] = {"aggregator": "union", "search": _PARETO}  # 0.2's defaults

METHODS: Mapping[str, tuple[str, Method | None]] = {
    UNTOUCHED: ("the program as it is", None),
    "gepa": ("dspy.GEPA, minibatches of 3", _gepa),
    "naive-40": ("dspy.GEPA, minibatches of 40", partial(_gepa, reflection_minibatch_size=40)),
    "pxn": (
        "dspy.GEPA, P×N(2, 4)",
        partial(_gepa, gepa_kwargs={"sampling_strategy": PxNSampling(2, 4)}),
    ),
    "combee": ("Combee, its defaults", _combee),
    "union": ("Combee, union, keep='pareto': 0.2's defaults", partial(_combee, **_OLD)),
    # For a model that one call of many reflections asks too much of: combee tune-scan finds which.
    "union-4": (
        "Combee, union, four reflections a call",
        partial(
            _combee, aggregator=Union(fan_in=4), search=_PARETO, artifact=Instruction(view="all")
        ),
    ),
    "union-4-feedback": (
        "Combee, union, four a call, without the program's answers",
        partial(
            _combee,
            aggregator=Union(fan_in=4),
            search=_PARETO,
            artifact=Instruction(view="feedback"),
        ),
    ),
    **{
        name: (f"Combee, {name}, keep='pareto'", partial(_combee, aggregator=name, search=_PARETO))
        for name in ("parallel-scan", "single-call")
    },
    "trunk": (
        "Combee, union, keep='trunk'",
        partial(_combee, aggregator="union", search=Search(keep="trunk")),
    ),
    "reference-trunk": (
        "Combee, reference-scan, keep='trunk'",
        partial(_combee, aggregator="reference-scan", search=Search(keep="trunk")),
    ),
    "reference-pareto": (
        "Combee, reference-scan, keep='pareto'",
        partial(_combee, aggregator="reference-scan", search=_PARETO),
    ),
    "paper": ("Combee, the paper's algorithm", partial(_combee, **paper())),
    **{
        name: (f"Combee, its defaults, a {name}", partial(_combee, artifact=name))
        for name in ("memory", "playbook")
    },
    "few-shot": (
        "Combee, worked examples and no lessons",
        partial(_combee, search=_PARETO, operators=["few-shot-swap"]),
    ),
}
"""What each method is, and what makes it; ``untouched`` is read and not searched."""


def run(options: RealOptions) -> Iterator[RealRun]:
    """Run what has not been run, in the order that was drawn when the study began.

    Raises:
        ArgumentValueError: The folder holds another study, or an option cannot be used.
    """
    sizes = {"train": options.train, "validation": options.validation, "heldout": options.heldout}
    own = {"path": None if options.path is None else str(options.path), "rules": options.rules}
    own |= {"choices": options.choices or None, "seed": options.rule_set}
    own = {name: value for name, value in own.items() if value is not None}
    rows = load_rows(options.benchmark, own, **sizes)
    folder = Path(options.folder)
    for part in ("runs", "logs"):
        check_folder(folder / part)
    (folder / "runs").mkdir(parents=True, exist_ok=True)
    endpoint = _endpoint(options)
    plan = _planned(options, rows, endpoint, folder / "plan.json")
    options = _fitted(options, plan)
    before: tuple[float, ...] | None = None
    for method, seed in plan["order"]:
        file = folder / "runs" / f"{method}-{seed}.json"
        if (record := _read(file)) is not None:
            outcome = RealRun(
                **{**record, "before": tuple(record["before"]), "after": tuple(record["after"])}
            )
        else:
            outcome = _run(options, method, seed, rows, endpoint, before)
            _written(file, asdict(outcome))
        before = outcome.before
        yield outcome


def _endpoint(options: RealOptions) -> Endpoint:
    models = []
    for lm, file, sha256, base in (
        (options.lm, options.file, options.sha256, options.api_base),
        (
            options.reflection_lm or options.lm,
            options.reflection_file or options.file,
            options.reflection_sha256 or (None if options.reflection_file else options.sha256),
            options.reflection_api_base or options.api_base,
        ),
    ):
        where: dict[str, Any] = {"api_base": base, "api_key_env": options.api_key_env}
        if lm == "embedded":
            where = {
                "file": file.split(",") if file else None,
                "sha256": sha256,
                "context": options.context,
            }
        models.append(model_lm(lm, slots=options.slots, max_tokens=options.max_tokens, **where)[0])
    task, reflection = models
    embedded = options.lm == "embedded"
    return Endpoint(
        task, as_proposer(reflection), task, adapter=ConstrainedJSONAdapter() if embedded else None
    )


def _planned(
    options: RealOptions, rows: LoadedBenchmark, endpoint: Endpoint, file: Path
) -> dict[str, Any]:
    """Draw the order and measure the model, or read what an earlier start has drawn."""
    chosen = json.loads(
        json.dumps(
            {name: value for name, value in asdict(options).items() if name != "folder"},
            default=str,
        )
    )
    if (plan := _read(file)) is not None:
        if plan["options"] != chosen:
            wrong = sorted(name for name in chosen if chosen[name] != plan["options"].get(name))
            problem = f"holds a study with other options: {', '.join(wrong)}"
            raise ArgumentValueError("folder", options.folder, problem, "Name another folder.")
        return plan
    order = [
        (method, seed)
        for method in options.methods
        for seed in options.seeds
        if method != UNTOUCHED
    ]
    derive(options.seeds[0], "bench real", "order").shuffle(order)
    first = [
        (UNTOUCHED, seed) for seed in options.seeds[:1]
    ]  # one reading is enough: nothing in it is drawn
    few = replace(rows, heldout=first_rows(rows.train, min(_PROBED, len(rows.train))))
    with endpoint.counting() as counted:
        began = time.monotonic()
        scores_of(rows.program(), few, endpoint, options.slots)
        seconds = time.monotonic() - began
    if not counted.tokens:
        problem = "counts no tokens in its answers, so no budget in tokens would end a run"
        raise ArgumentValueError("lm", options.lm, problem, "Have the service report usage.")
    plan = {
        "options": chosen,
        "order": first + order,
        "tokens_per_second": counted.tokens / seconds,
        "reading_tokens": counted.tokens * len(rows.heldout) / len(few.heldout),
    }
    _written(file, plan)
    return plan


def _fitted(options: RealOptions, plan: Mapping[str, Any]) -> RealOptions:
    """Return the options with the budget that fits into ``hours``; say what is ahead."""
    rate, runs = plan["tokens_per_second"], len(plan["order"]) - 1
    readings = plan["reading_tokens"] * len(plan["order"])
    if options.hours is not None:
        tokens = int((options.hours * 3600 * rate - readings) / max(runs, 1))
        if tokens < _PROBED * len(options.methods):
            problem = (
                f"leaves {tokens} tokens for each of {runs} runs at {rate:.0f} tokens a second"
            )
            raise ArgumentValueError(
                "hours", options.hours, problem, "Give more, fewer seeds, or fewer methods."
            )
        options = replace(options, tokens=tokens)
    hours = (runs * options.tokens + readings) / rate / 3600
    sys.stderr.write(
        f"{runs} runs of {options.tokens:,} tokens each, and {len(plan['order'])} readings of the"
        f" held-out rows: about {hours:.1f} hours at the {rate:.0f} tokens a second that {_PROBED}"
        " questions had (long prompts have more, long answers fewer). Interrupt it at any time:"
        " the same command goes on.\n"
    )
    return options


def _run(
    options: RealOptions,
    method: str,
    seed: int,
    rows: LoadedBenchmark,
    endpoint: Endpoint,
    before: tuple[float, ...] | None,
) -> RealRun:
    make = METHODS[method][1]
    learned = Learned(rows.program(), {}, 0.0)
    if make is not None:
        logs = Path(options.folder) / "logs" / f"{method}-{seed}"
        learned = learn(make, rows, endpoint, seed, options, logs)
    after = scores_of(learned.program, rows, endpoint, options.slots)
    prompt = prompt_of(learned.program)
    versions = environment()["versions"]
    rules_kept = count_rules(prompt, rows.lessons)
    return RealRun(
        method,
        seed,
        before or after,
        after,
        learned.tokens,
        learned.seconds,
        rules_kept,
        len(rows.lessons),
        prompt,
        versions,
    )


def learn(
    make: Method,
    rows: LoadedBenchmark,
    endpoint: Endpoint,
    seed: int,
    options: RealOptions,
    log_dir: Path,
) -> Learned:
    """Run one method until its budget in tokens is spent.

    Args:
        make: What makes the method.
        rows: What it learns from.
        endpoint: Who answers and writes.
        seed: Its seed.
        options: Its ``tokens`` and ``slots``.
        log_dir: Its folder; what an interrupted run left there is deleted.
    """
    with (
        dspy.context(**endpoint.settings()),
        quietly(),
        endpoint.counting() as counted,
        metered() as meter,
    ):

        def spent() -> int:
            total = totals(meter.usage()).total
            return int(total.prompt_tokens + total.completion_tokens)

        began = time.monotonic()
        splits = {
            "trainset": list(rows.train.examples),
            "valset": list(rows.validation.examples),
        }
        # What an interrupted run left would be counted in no budget.
        if log_dir.exists():
            shutil.rmtree(log_dir)
        search = make(rows, endpoint.reflection_lm, seed, options, spent, str(log_dir))
        program = search.compile(rows.program(), **splits)
        seconds = time.monotonic() - began
    tokens = {
        role: tally.prompt_tokens + tally.completion_tokens
        for role, tally in counted.tallies.items()
    }
    return Learned(program, tokens, seconds)


def prompt_of(program: dspy.Module) -> str:
    """Return all that a program's predictors say, with their worked examples."""
    parts = []
    for predictor in program.predictors():
        parts.append(predictor.signature.instructions)
        parts += [
            "; ".join(f"{name}: {value}" for name, value in dict(demo).items())
            for demo in predictor.demos
        ]
    return "\n".join(parts)


def count_rules(prompt: str, lessons: Sequence[str]) -> int:
    """Count the rules of which one line of the prompt has every word that no other rule has."""
    words = [set(normalised(lesson).split()) for lesson in lessons]
    own = [
        words_of_rule - set().union(*(other for other in words if other is not words_of_rule))
        for words_of_rule in words
    ]
    lines = [set(normalised(text).split()) for text in prompt.splitlines()]
    return sum(bool(telling) and any(telling <= line for line in lines) for telling in own)


def _read(file: Path) -> dict[str, Any] | None:
    return json.loads(read_plain(file)) if os.path.lexists(file) else None


def _written(file: Path, record: Mapping[str, Any]) -> None:
    # Whole or not at all: an interruption leaves no half of a run.
    write_plain(file, json.dumps(record, indent=2) + "\n")


def _sides(runs: Sequence[RealRun]) -> list[Side[RealRun]]:
    searched = [run for run in runs if run.method != UNTOUCHED]
    # The reference comes first, wherever it was drawn.
    return side_by_side(
        sorted(searched, key=lambda run: run.method != "gepa"), lambda *_: None, margin=_MARGIN
    )


def _concluded(side: Side[RealRun]) -> str:
    if side.versus is None:
        return "the reference"
    difference = side.versus.difference
    if difference.low > 0:
        return "better"
    if difference.high < 0:
        return "worse"
    return "no worse by the margin" if side.versus.comparable else "cannot be told apart"


def line(options: RealOptions, row: RealRun) -> str:
    """Say what one run came to."""
    score = sum(row.after) / len(row.after)
    return (
        f"{row.method}, seed {row.seed}: held-out {score:.3f}, {row.kept} of {row.rules} rules,"
        f" {row.seconds:.0f} s"
    )


def summary(options: RealOptions, rows: Sequence[RealRun]) -> list[dict[str, Any]]:
    """Return the methods side by side, with what may be concluded, as plain JSON data."""
    return [{**side.figures(), "concluded": _concluded(side)} for side in _sides(rows)]


_HEADS = (
    "method",
    "what it is",
    "seeds",
    "held-out",
    "gain",
    "minus GEPA",
    "tokens",
    "of them to learn",
    "seconds",
    "rules",
    "so it is",
)


def table(options: RealOptions, rows: Sequence[RealRun]) -> Table:
    """Return the methods over the seeds that all have finished, and write them as a page too."""
    sides = _sides(rows)
    untouched = [row for row in rows if row.method == UNTOUCHED]
    cells = [
        (
            row.method,
            METHODS[row.method][0],
            "",
            f"{sum(row.after) / len(row.after):.3f}",
            "",
            "",
            "",
            "",
            "",
            f"{row.kept} of {row.rules}",
            "the floor",
        )
        for row in untouched[:1]
    ]
    for side in sides:
        mean = {
            name: sum(row.tokens.get(name, 0) for row in side.runs) / len(side.runs)
            for name in ("task", "reflect")
        }
        cells.append(
            (
                side.method,
                METHODS[side.method][0],
                str(len(side.runs)),
                str(side.heldout),
                side.gain.signed,
                "" if side.versus is None else side.versus.difference.signed,
                f"{sum(mean.values()):,.0f}",
                f"{mean['reflect']:,.0f}",
                f"{sum(row.seconds for row in side.runs) / len(side.runs):,.0f}",
                (
                    f"{sum(row.kept for row in side.runs) / len(side.runs):.1f} of"
                    f" {side.runs[0].rules}"
                ),
                _concluded(side),
            )
        )
    apart = f"Cannot be told apart: neither, and a loss of {_MARGIN:g} points is not excluded."
    notes = [
        (
            f"{options.benchmark}, {len(rows[0].after)} held-out rows; 95 % intervals over rows and"
            " seeds."
        ),
        f"Better, worse: the interval of the difference from dspy.GEPA leaves 0 out. {apart}",
        (
            "Intervals are not corrected for the number of methods. It holds for these models, rows"
            " and this budget."
        ),
    ]
    _page(Path(options.folder) / "real.md", cells, notes, sides)
    return by_rows(
        "Methods at an equal budget in tokens",
        ["<" + _HEADS[0], "<" + _HEADS[1], *_HEADS[2:]],
        cells,
        notes,
    )


def _page(
    file: Path, cells: Sequence[Sequence[str]], notes: Sequence[str], sides: Sequence[Side[RealRun]]
) -> None:
    lines = [
        "# Methods at an equal budget in tokens",
        "",
        f"| {' | '.join(_HEADS)} |",
        f"|{' --- |' * len(_HEADS)}",
    ]
    lines += [f"| {' | '.join(row)} |" for row in cells]
    lines += ["", *notes, "", "## What each first seed ended with", ""]
    for side in sides:
        text = "\n".join(f"    {one}" for one in side.runs[0].prompt.splitlines())
        lines += [f"{side.method}, seed {side.runs[0].seed}:", "", text, ""]
    write_plain(file, "\n".join(lines))
