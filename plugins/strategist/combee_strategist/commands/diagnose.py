"""``combee diagnose``: whether serial search has converged, before a search goes wide."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.files import check_folder, make_folder

if TYPE_CHECKING:
    from combee_strategist.planning import Curve

__all__ = ["diagnose", "one_task", "serially"]


def diagnose(
    source: Annotated[str, typer.Argument(metavar="RUN|CONFIG.yaml|mlflow:ID", show_default=False)],
    slots: Annotated[
        int | None, typer.Option(min=1, help="Calls that the service answers at once.")
    ] = None,
    margin: Annotated[
        float, typer.Option(help="Points that a plateau may still gain in its second half.")
    ] = 3.0,
    run: Annotated[
        str | None, typer.Option(help="One of several tasks, by its name; the newest by default.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="Folder to write into; the run's own by default.")
    ] = None,
) -> None:
    """Decide whether serial search has converged, so that going wide can pay.

    RUN is the log_dir of a serial search, mlflow:ID a serial search in MLflow.
    With CONFIG.yaml, a file of combee run, the serial search runs first, in log_dir
    with -serial added: minibatches of three, one rollout and one update at a time.
    It reads no held-out row. Run it again to go on.

    Writes diagnosis.json, .md and .html. Exit code 0 for go, 1 for no go.
    """
    from combee_strategist import planning

    curve, folder = _curve(source, run)
    folder = output or folder
    make_folder(folder)
    diagnosis = planning.diagnose(curve, margin=margin / 100, slots=slots)
    diagnosis.save(folder)
    typer.echo((folder / "diagnosis.md").read_text(encoding="utf-8"))
    typer.echo(f"Wrote {folder / 'diagnosis.html'}")
    if not diagnosis.go:
        raise typer.Exit(1)


def _curve(source: str, run: str | None) -> tuple[Curve, Path]:
    from combee_strategist.planning import Curve

    if source.startswith("mlflow:"):
        return Curve.of_mlflow(source.removeprefix("mlflow:")), Path()
    folder = _searched(Path(source)) if Path(source).suffix in (".yaml", ".yml") else Path(source)
    return Curve.of_run(folder, run), folder


def one_task(config: Path) -> dict[str, Any]:
    """Return what a file of ``combee run`` holds, which is one task with a log_dir.

    Raises:
        ArgumentValueError: It is not.
    """
    from combee_dspy.cli import _reading

    data = _reading.read_mapping(config)
    if data.get("tasks") or not data.get("log_dir"):
        remedy = "Give log_dir, and one task."
        raise ArgumentValueError("CONFIG", str(config), "has no log_dir, or several tasks", remedy)
    # What is derived from it has something added to its name: with a slash at the end it would lie
    # within.
    return {**data, "log_dir": str(Path(str(data["log_dir"])))}


def serially(data: dict[str, Any]) -> dict[str, Any]:
    """Return the serial form of a run: minibatches of three, one rollout and update at a time."""
    from combee_dspy.cli import _reading

    strategies = _reading.section(data, "strategies")
    reason = "dspy.GEPA's minibatch, for the serial baseline"
    controller = {"name": "static", "params": {"size": 3, "reason": reason}}
    # GEPA's search where the file does not choose; a playbook has one text.
    artifact = strategies.get("artifact", "instruction")
    name = artifact.get("name") if isinstance(artifact, Mapping) else artifact
    keep = {"keep": "pareto"} if name == "instruction" else {}
    return data | {
        "strategies": {**strategies, "controller": controller},
        "search": {**keep, **_reading.section(data, "search"), "staleness": 0},
        "num_threads": 1,
        # As dspy.GEPA, it buys the same rollout again; without that its plateau would be bought in
        # no rollouts at all.
        "cache": False,
    }


def _searched(config: Path) -> Path:
    """Run a file's search serially; return its log_dir."""
    from combee_dspy.cli import _plan
    from combee_dspy.cli.run import compiled

    data = serially(one_task(config))
    data["log_dir"] = f"{data['log_dir']}-serial"
    plan = _plan.plan_run(data, config.resolve().parent)
    check_folder(plan.folder / data["log_dir"])
    # The look at the held-out set is the wide search's.
    plan = replace(
        plan,
        tasks=tuple(replace(task, task=replace(task.task, heldout=None)) for task in plan.tasks),
    )
    for result in compiled(plan):
        if result.error is not None:
            raise result.error
    return plan.folder / str(data["log_dir"])
