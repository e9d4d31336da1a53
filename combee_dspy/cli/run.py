"""``combee run``: one run from a YAML file."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from combee_dspy.cli._config import checked_config, read_mapping
from combee_dspy.cli._exit import EXIT_CODES, Debug, guarded
from combee_dspy.cli._job import run_job
from combee_dspy.cli._job_config import is_job, job_of
from combee_dspy.cli._lms import adapter_of, opened_lms
from combee_dspy.cli._plan import Plan, plan_run, saved
from combee_dspy.tracking import one_line

if TYPE_CHECKING:
    from combee_dspy.report import CombeeReport

__all__ = ["HELP", "run"]

HELP = f"""Learn a program's prompts as a YAML file says.

A benchmark with the embedded model, nothing else to install or pay:

\b
    data: {{benchmark: {{name: formula-mini, params: {{task: route}}}}}}
    lms: {{task: embedded}}
    budget: {{seconds: 240}}
    tracker: mlflow
    output: learned.json

Your own program, files and models:

\b
    program: my_package.qa:Program     # an object, a class, or a function
    metric: my_package.qa:metric       # (gold, pred, trace, pred_name, pred_trace)
    data:
      train: data/train.jsonl          # or .json, .csv
      validation: data/validation.jsonl
      heldout: data/heldout.jsonl      # read once, at the end
      inputs: [question]
    lms:
      task: {{model: openai/gpt-5-nano, temperature: 1.0, max_tokens: 16000}}
      proposer:
        model: openai/my-model
        api_base: http://gpu:8000/v1
        api_key_env: MY_KEY
    strategies:
      aggregator: {{name: parallel-scan, params: {{copies: 3}}}}
      operators: [insert, few-shot-swap]
      controller: {{name: static, params: {{size: 40, reason: as before}}}}
      stopping: [{{name: patience, params: {{iterations: 5}}}}]   # beside the budget
    budget: {{rollouts: 2000, dollars: 5}}
    prices: {{openai/my-model: {{prompt: 0.1, completion: 0.4}}}}
    threads: 64
    seed: 0
    log_dir: checkpoints               # run again to resume

Several tasks over one pool, each with a search, a budget and a held-out study of its own:

\b
    tasks:
      shares: {{data: {{train: a.jsonl, heldout: b.jsonl, inputs: [question]}}, seed: 1}}
      bonds: {{data: {{train: c.jsonl, heldout: d.jsonl, inputs: [question]}}}}
    shape: auto                        # or candidate-parallel, task-parallel, hybrid
    at_once: 4
    on_error: continue                 # or stop
    output: learned/{{name}}.json        # further keys as above, for all tasks

Further strategies: artifact, executor, embedder; combee plugins lists them all.
Further keys: adapter (chat, json, xml, constrained-json), probe (false skips the
one-token question to each LM). Keys of services never stand in the file: name
the environment variable in api_key_env. Paths start at the file's folder;
modules are looked for in the working directory, then there.

{EXIT_CODES}"""

Config = Annotated[Path, typer.Argument(metavar="CONFIG.yaml", help="What to run.", show_default=False)]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Load and check everything, say what would run, buy nothing.")]


@guarded
def run(config: Config, dry_run: DryRun = False, debug: Debug = False) -> None:
    """Learn a program's prompts as a YAML file says."""
    data, folder = read_mapping(config), config.resolve().parent
    console = Console()
    if is_job(data):
        run_job(job_of(data), folder, console, dry_run=dry_run)
        return
    plan = plan_run(checked_config(data), folder)
    if dry_run:
        _show_plan(plan, console)
        return
    with opened_lms(plan.config, plan.benchmark) as opened:
        program = _compile(plan, opened)
    saved(program, plan.output)
    _show_report(program.combee_report, plan, console)


def _compile(plan: Plan, lms: dict[str, Any]) -> Any:
    import dspy

    combee = plan.combee(lms.get("proposer", lms["task"]))
    adapter = adapter_of(plan.config.adapter, plan.config.lms.task)
    with dspy.context(lm=lms["task"], **({} if adapter is None else {"adapter": adapter})):
        return combee.compile(plan.program, trainset=plan.train, valset=plan.validation, heldout=plan.heldout)


def _show_plan(plan: Plan, console: Console) -> None:
    config = plan.config
    sizes = {"train": plan.train, "validation": plan.validation, "heldout": plan.heldout}
    optimizer = plan.combee()
    rows = {
        "program": config.program or f"{config.data.benchmark.name if config.data.benchmark else ''}'s own",
        "predictors": ", ".join(name for name, _ in plan.program.named_predictors()),
        "rows": ", ".join(f"{split} {len(rows)}" for split, rows in sizes.items() if rows),
        **_provenance(plan),
        "models": ", ".join(f"{role} {lm.model}" for role, lm in config.lms if lm is not None),
        "aggregator": repr(optimizer.aggregator),
        "operators": ", ".join(repr(operator) for operator in optimizer.operators),
        "controller": repr(optimizer.controller),
        "budget": ", ".join(f"{name} {value:g}" for name, value in config.budget if value is not None),
        **_chosen(plan),
        "recorded in": config.tracker.name if config.tracker else "nothing",
        "output": str(plan.output or "none"),
    }
    _show(rows, console)
    console.print("Everything could be loaded. Nothing was bought: leave out --dry-run to run it.")


def _chosen(plan: Plan) -> dict[str, str]:
    """Return the strategies that only some configurations name."""
    found = plan.config.strategies
    named: dict[str, list[Any]] = {
        "artifact": [found.artifact],
        "executor": [found.executor],
        "embedder": [found.embedder],
        "stopping": found.stopping or [],
    }
    texts = {kind: ", ".join(one.name for one in chosen if one is not None) for kind, chosen in named.items()}
    return {kind: text for kind, text in texts.items() if text}


def _show_report(report: CombeeReport, plan: Plan, console: Console) -> None:
    rows = {
        **_provenance(plan),
        "stopped": report.reason,
    }
    if math.isfinite(report.best_score):
        rows["validation"] = f"{report.seed_score:.3f} → {report.best_score:.3f}"
    held = report.heldout
    if held is not None:
        rows["held-out"] = (
            f"{held.before:.3f} → {held.after:.3f} ({held.difference:+.3f}, {held.confidence:.0%} interval "
            f"{held.low:+.3f} to {held.high:+.3f}, n = {held.size})"
        )
    rows["spent"] = f"{report.rollouts} rollouts in {report.iterations} iterations, {report.seconds:.1f} s"
    for role, counts in report.costs.get("by_role", {}).items():
        tokens = f"{counts['prompt_tokens']} tokens in, {counts['completion_tokens']} out"
        dollars = "dollars unknown" if counts["dollars"] is None else f"${counts['dollars']:.4f}"
        rows[f"  {role}"] = f"{counts['calls']} calls, {tokens}, {dollars}"
    if any(lm is not None and lm.model == "simulated" for _, lm in plan.config.lms):
        rows["note"] = "simulated service: these figures measure no language model"
    for number, warning in enumerate(report.warnings, start=1):
        rows[f"warning {number}"] = warning
    if plan.output is not None:
        rows["program"] = str(plan.output)
    if plan.tracker is not None and plan.tracker.where:
        rows["look at it"] = plan.tracker.where
    _show(rows, console)


def _provenance(plan: Plan) -> dict[str, str]:
    found = plan.benchmark
    if found is None:
        return {}
    notes = {f"data note {number}": note for number, note in enumerate(found.notes, start=1)}
    return {"data": f"{found.name} from {found.source}; licence {found.licence}", **notes}


def _show(rows: dict[str, str], console: Console) -> None:
    for name, value in rows.items():
        # Not wrapped, so that a path or a command can be copied.
        console.print(Text.assemble((f"{name:<13}", "bold"), one_line(value, 1_000)), soft_wrap=True)
