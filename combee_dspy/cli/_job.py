"""``combee run`` with several tasks: plans each, runs them over one pool, says what became of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import typer
from rich.console import Console
from rich.text import Text

from combee_dspy import registry
from combee_dspy.cli._config import RunConfig
from combee_dspy.cli._exit import exit_code_of
from combee_dspy.cli._job_config import JobConfig
from combee_dspy.cli._lms import adapter_of, opened_lms
from combee_dspy.cli._plan import Plan, plan_run, saved
from combee_dspy.exceptions import TaskCancelledError
from combee_dspy.tracking import Redactor, Tracker, one_line

if TYPE_CHECKING:
    from combee_dspy import Combee, Task, TaskResult

__all__ = ["run_job"]


def run_job(job: JobConfig, folder: Path, console: Console, *, dry_run: bool = False) -> None:
    """Run a job, save its programs and show what it has to say.

    Args:
        job: What the file says.
        folder: Where relative paths start.
        console: Where to show it.
        dry_run: Whether to check everything and buy nothing.

    Raises:
        ArgumentError: Something in it cannot be used.
        typer.Exit: A task has failed; the others' programs are saved.
    """
    plans = {name: plan_run(config, folder) for name, config in job.tasks.items()}
    if dry_run:
        for name, plan in plans.items():
            _show(console, name, _sizes(plan))
        console.print("Everything could be loaded. Nothing was bought: leave out --dry-run to run it.")
        return
    results = _compiled(job, plans)
    for result in results:
        plan = plans[result.name]
        saved(result.program, plan.output)
        _show(console, result.name, _told(result, plan))
    if any(_simulated(plan.config) for plan in plans.values()):
        console.print("simulated service: these figures measure no language model")
    failed = [result.error for result in results if result.error is not None]
    if failed:
        # What ended by itself says more than what was cancelled for it.
        own = (error for error in failed if not isinstance(error, TaskCancelledError))
        raise typer.Exit(exit_code_of(next(own, failed[0])))


def _compiled(job: JobConfig, plans: Mapping[str, Plan]) -> tuple[TaskResult, ...]:
    from combee_dspy import Task, compile_many

    with _lms(plans) as opened:
        tracker = _tracker(next(iter(plans.values())).config)
        made: dict[str, Combee] = {}
        tasks: list[Task] = []
        for name, plan in plans.items():
            lms = opened[name]
            combee = made[name] = plan.combee(lms.get("proposer", lms["task"]))
            # One object: that is how its runs get one parent.
            combee.tracker = tracker
            adapter = adapter_of(plan.config.adapter, plan.config.lms.task)
            context = {"lm": lms["task"], **({} if adapter is None else {"adapter": adapter})}
            tasks.append(
                Task(name, plan.program, plan.train, valset=plan.validation, heldout=plan.heldout, context=context)
            )
        return compile_many(
            tasks,
            combee=lambda task: made[task.name],
            shape=job.shape,
            at_once=job.at_once,
            on_error=job.on_error,
        )


@contextmanager
def _lms(plans: Mapping[str, Plan]) -> Iterator[dict[str, dict[str, Any]]]:
    """Make every task's LMs; tasks that name the same models share them, simulated ones apart."""
    with ExitStack() as stack:
        opened: dict[str, dict[str, Any]] = {}
        for name, plan in plans.items():
            twin = next((other for other in opened if plans[other].config.lms == plan.config.lms), None)
            if twin is not None and not _simulated(plan.config):
                opened[name] = opened[twin]
            else:
                opened[name] = stack.enter_context(opened_lms(plan.config, plan.benchmark))
        yield opened


def _tracker(config: RunConfig) -> Tracker | None:
    if config.tracker is None:
        return None
    return cast("Tracker", registry.resolve("tracker", config.tracker.model_dump()))


def _simulated(config: RunConfig) -> bool:
    return any(lm is not None and lm.model == "simulated" for _, lm in config.lms)


def _sizes(plan: Plan) -> str:
    sizes = {"train": plan.train, "validation": plan.validation, "held-out": plan.heldout}
    rows = ", ".join(f"{split} {len(rows)}" for split, rows in sizes.items() if rows)
    return f"{rows}; seed {plan.config.seed}; to {plan.output or 'no file'}"


def _told(result: TaskResult, plan: Plan) -> str:
    report = result.report
    if report is None:
        return Redactor().text(f"{type(result.error).__name__}: {result.error}")
    parts = []
    if math.isfinite(report.best_score):
        parts.append(f"validation {report.seed_score:.3f} → {report.best_score:.3f}")
    held = report.heldout
    if held is not None:
        parts.append(
            f"held-out {held.before:.3f} → {held.after:.3f} ({held.difference:+.3f}, {held.confidence:.0%} interval "
            f"{held.low:+.3f} to {held.high:+.3f}, n = {held.size})"
        )
    parts.append(f"{report.rollouts} rollouts, {report.seconds:.1f} s, {report.reason}")
    if plan.output is not None:
        parts.append(f"saved to {plan.output}")
    return "; ".join(parts)


def _show(console: Console, name: str, text: str) -> None:
    console.print(Text.assemble((f"{name:<13} ", "bold"), one_line(text, 1_000)), soft_wrap=True)
