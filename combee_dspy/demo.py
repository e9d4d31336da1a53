"""The demo: a real, tiny language model learns to route finance questions.

Everything that was tuned for it stands in :data:`EMBEDDED`, in one place: task,
sizes, operators and budget. It was tuned on rows of other seeds, and on the held-out
rows of seeds 0 and 1; the ten seeds that are reported are 2 to 11, and the demo
itself runs the first of them (see the results page).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dspy
from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from combee_dspy.benchmarks import LoadedBenchmark, load_benchmark
from combee_dspy.combee import Combee
from combee_dspy.evaluation import PairedDifference
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.operators import FewShotSwap, Insert, Operator
from combee_dspy.report import CombeeReport
from combee_dspy.stopping import Budget

__all__ = ["EMBEDDED", "DemoOptions", "DemoPlan", "arranged", "run_demo"]


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """What the user asked of the demo. ``None`` leaves a choice to the demo.

    Attributes:
        lm: DSPy's name of the model; ``None`` is the embedded model.
        api_base: Address of an OpenAI-compatible service.
        api_key_env: Environment variable that holds the key.
        benchmark: The benchmark's name.
        path: Where its rows are, if they are not bundled.
        seed: The run's seed.
        rollouts: Budget in rollouts.
        calls: Budget in LM calls.
        tokens: Budget in tokens.
        dollars: Budget in dollars.
        seconds: Budget in seconds.
        log_dir: Where the run's journal is kept; by default it goes with the run.
        mlflow: Whether to record the run in MLflow.
    """

    lm: str | None = None
    api_base: str | None = None
    api_key_env: str | None = None
    benchmark: str = "formula-mini"
    path: Path | None = None
    seed: int = 2
    rollouts: int | None = None
    calls: int | None = None
    tokens: int | None = None
    dollars: float | None = None
    seconds: float | None = None
    log_dir: Path | None = None
    mlflow: bool = False


@dataclass(frozen=True, slots=True)
class DemoPlan:
    """Task, sizes, operators and budget of a demo.

    Attributes:
        params: Parameters of the benchmark.
        operators: The operators.
        rollouts: Budget in rollouts, the held-out ones not counted.
        threads: Rollouts at once.
        arguments: Further arguments of ``Combee``.
    """

    params: Mapping[str, Any]
    operators: tuple[Operator, ...]
    rollouts: int
    threads: int
    arguments: Mapping[str, Any] = field(default_factory=dict)


EMBEDDED = DemoPlan(
    params={"task": "route", "levels": (1,), "formulas": 6, "train": 72, "validation": 24, "heldout": 48},
    # Written lessons teach this model nothing, and its own are no lessons: demonstrations alone.
    operators=(FewShotSwap(labelled=True), FewShotSwap(labelled=True)),
    rollouts=220,
    threads=4,
    arguments={"reflection_minibatch_size": 18, "use_merge": False},
)

REMOTE = DemoPlan(params={}, operators=(Insert(), FewShotSwap()), rollouts=1_000, threads=32)


@contextmanager
def arranged(options: DemoOptions) -> Iterator[tuple[LoadedBenchmark, DemoPlan, dspy.LM]]:
    """Prepare a demo: benchmark, plan and model, with DSPy pointed at the model.

    Raises:
        ArgumentValueError: The key's variable is not set.
        DataSourceError: The benchmark's rows cannot be read.
        LocalModelError: The embedded model cannot be started.
    """
    plan = EMBEDDED if options.lm is None else REMOTE
    params: dict[str, Any] = dict(plan.params) if options.benchmark == "formula-mini" else {}
    if options.lm is None and options.benchmark == "formula-mini":
        params["seed"] = options.seed
    if options.path is not None:
        params["path"] = str(options.path)
    benchmark = load_benchmark(options.benchmark, **params)
    if options.lm is None:
        from combee_dspy.lms import ChoiceAdapter, embedded

        with dspy.context(lm=embedded(slots=plan.threads), adapter=ChoiceAdapter()):
            yield benchmark, plan, dspy.settings.lm
    else:
        with dspy.context(lm=dspy.LM(options.lm, **_connection(options))):
            yield benchmark, plan, dspy.settings.lm


def run_demo(options: DemoOptions, console: Console | None = None) -> CombeeReport:
    """Run the demo and say what came of it.

    Args:
        options: What the user asked for.
        console: Where to write; standard output by default.

    Raises:
        CombeeError: Input, data, service or model cannot be used.
    """
    console = console or Console()
    with arranged(options) as (benchmark, plan, lm):
        console.print(_heading(options, benchmark, plan, lm))
        combee = Combee(
            benchmark.metric,
            budget=_budget(options, plan),
            reflection_lm=lm,
            operators=plan.operators,
            num_threads=plan.threads,
            seed=options.seed,
            log_dir=options.log_dir,
            tracker=("progress", "mlflow") if options.mlflow else "progress",
            **plan.arguments,
        )
        program = combee.compile(
            benchmark.program(),
            trainset=list(benchmark.train.examples),
            valset=list(benchmark.validation.examples),
            heldout=list(benchmark.heldout.examples),
        )
    report: CombeeReport = program.combee_report
    for part in (_verdict(report.heldout), _costs(report), _prompt(program), _further(options)):
        console.print(part)
    return report


def _connection(options: DemoOptions) -> dict[str, Any]:
    settings: dict[str, Any] = {} if options.api_base is None else {"api_base": options.api_base}
    if options.api_key_env is not None:
        key = os.environ.get(options.api_key_env)
        if not key:
            remedy = f"Run: export {options.api_key_env}=…"
            raise ArgumentValueError("--api-key-env", options.api_key_env, "is not set in the environment", remedy)
        settings["api_key"] = key
    return settings


def _budget(options: DemoOptions, plan: DemoPlan) -> Budget:
    asked = {name: getattr(options, name) for name in ("rollouts", "calls", "tokens", "dollars", "seconds")}
    return Budget(**{"rollouts": plan.rollouts, **{name: value for name, value in asked.items() if value is not None}})


def _heading(options: DemoOptions, benchmark: LoadedBenchmark, plan: DemoPlan, lm: dspy.LM) -> Panel:
    names = f"{benchmark.name}/{benchmark.task}" if benchmark.task != benchmark.name else benchmark.name
    sizes = f"{len(benchmark.train)} to learn from, {len(benchmark.validation)} to compare candidates on"
    lines = [
        f"model      {lm.model}",
        f"task       {names}: {benchmark.signature.instructions.splitlines()[0]}",
        f"questions  {sizes}, {len(benchmark.heldout)} held out until the end",
        f"source     {benchmark.source}",
        f"budget     {plan.rollouts if options.rollouts is None else options.rollouts} rollouts, seed {options.seed}",
    ]
    if options.lm is None:
        lines += [
            "",
            "This model is real but tiny: 135 million parameters, on your processor. It shows that the machinery",
            "learns, not how good a prompt can get. Point the demo at a model of your own:",
            "  combee demo --lm openai/MODEL [--api-base URL] [--api-key-env NAME]",
            "  combee demo --lm openai/MODEL --benchmark formula --path DIR",
        ]
    return Panel(Text("\n".join(lines)), title="combee demo", title_align="left")


def _verdict(held: PairedDifference | None) -> Panel:
    if held is None:
        nothing = Text("There was no held-out set, so there is nothing to claim.")
        return Panel(nothing, title="held-out", title_align="left")
    figures = (
        f"before {held.before:.2f}   after {held.after:.2f}   difference {held.difference:+.2f} "
        f"({held.confidence:.0%} bootstrap interval {held.low:+.2f} to {held.high:+.2f}, {held.n} questions)"
    )
    if held.low > 0:
        verdict, style = "The learned prompt is better on questions that nobody has looked at.", "green"
    elif held.high < 0:
        verdict, style = "The learned prompt is worse on held-out questions. Do not use it.", "red"
    elif held.difference == 0:
        verdict, style = "It did not improve.", "yellow"
    else:
        verdict, style = "It did not improve clearly: the interval holds zero.", "yellow"
    return Panel(Text(f"{figures}\n{verdict}"), title="held-out", title_align="left", border_style=style)


def _costs(report: CombeeReport) -> Table:
    spent = f"spent: {report.rollouts} rollouts in {report.seconds:.0f} s — {report.reason}"
    table = Table(title=spent, title_justify="left")
    for heading in ("role", "calls", "tokens in", "tokens out", "LM seconds", "dollars"):
        table.add_column(heading, justify="left" if heading == "role" else "right")
    for role, sums in report.costs.by_role.items():
        dollars = "unknown" if sums.dollars is None else f"{sums.dollars:.4f}"
        tokens = (f"{sums.prompt_tokens:,}", f"{sums.completion_tokens:,}")
        table.add_row(role, f"{sums.calls:,}", *tokens, f"{sums.seconds:.0f}", dollars)
    return table


def _prompt(program: dspy.Module) -> Panel:
    lines = []
    for name, predictor in program.named_predictors():
        lines += [f"[{name}]", predictor.signature.instructions]
        for demo in predictor.demos:
            shown = "; ".join(f"{key}: {value}" for key, value in demo.items())
            lines.append(f"  for example — {shown}")
    return Panel(Text("\n".join(lines)), title="the learned prompt", title_align="left")


def _further(options: DemoOptions) -> Text:
    if options.log_dir is None:
        return Text("Nothing of the run was kept: add --log-dir DIR for its journal.")
    return Text(f"Look at the run: combee report {options.log_dir}, or combee rollouts {options.log_dir}.")
