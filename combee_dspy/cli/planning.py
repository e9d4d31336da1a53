"""``combee diagnose`` and ``combee plan``: before a search goes wide."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import yaml

from combee_dspy.cli._tables import plain
from combee_dspy.exceptions import ArgumentValueError, PlanGapsError
from combee_dspy.lms.redact import scrub

if TYPE_CHECKING:
    from combee_dspy.planning import Curve, Spec

__all__ = ["diagnose", "one_task", "plan", "serially"]


def diagnose(
    source: Annotated[str, typer.Argument(metavar="RUN|CONFIG.yaml|mlflow:ID", show_default=False)],
    slots: Annotated[int | None, typer.Option(min=1, help="Calls that the service answers at once.")] = None,
    margin: Annotated[float, typer.Option(help="What a plateau may still gain in its half, in points.")] = 3.0,
    run: Annotated[str | None, typer.Option(help="One of several tasks, by its name; the newest by default.")] = None,
    output: Annotated[Path | None, typer.Option(help="Folder to write into; the run's own by default.")] = None,
) -> None:
    """Decide whether serial search has converged, so that going wide can pay.

    RUN is the log_dir of a serial search, mlflow:ID one that MLflow holds.
    CONFIG.yaml is a file of combee run, which is then searched serially: GEPA's
    minibatches of three, one rollout at a time, no update before the last is done,
    the held-out set unread. Its log_dir has -serial added, and goes on where it ended.

    Writes diagnosis.json, .md and .html. Exit code 0 for go, 1 for no go.
    """
    from combee_dspy import planning

    curve, folder = _curve(source, run)
    folder = output or folder
    folder.mkdir(parents=True, exist_ok=True)
    found = planning.diagnose(curve, margin=margin / 100, slots=slots)
    found.save(folder)
    typer.echo((folder / "diagnosis.md").read_text(encoding="utf-8"))
    typer.echo(f"Wrote {folder / 'diagnosis.html'}")
    if not found.go:
        raise typer.Exit(1)


def _curve(source: str, run: str | None) -> tuple[Curve, Path]:
    from combee_dspy.planning import Curve

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
    return data


def serially(data: dict[str, Any]) -> dict[str, Any]:
    """Return the serial form of a run: minibatches of three, one rollout at a time, no update before the last."""
    from combee_dspy.cli import _reading

    reason = "dspy.GEPA's minibatch, for the serial baseline"
    controller = {"name": "static", "params": {"size": 3, "reason": reason}}
    # As dspy.GEPA, it buys the same rollout again; without that its plateau would be bought in no rollouts at all.
    return data | {
        "strategies": {**_reading.section(data, "strategies"), "controller": controller},
        "search": {**_reading.section(data, "search"), "staleness": 0}, "num_threads": 1, "cache": False,
    }  # fmt: skip


def _searched(config: Path) -> Path:
    """Run a file's search serially; return its log_dir."""
    from combee_dspy.cli import _plan
    from combee_dspy.cli.run import compiled

    data = serially(one_task(config))
    data["log_dir"] = f"{data['log_dir']}-serial"
    plan = _plan.plan_run(data, config.resolve().parent)
    # The look at the held-out set is the wide search's.
    plan = replace(plan, tasks=tuple(replace(one, task=replace(one.task, heldout=None)) for one in plan.tasks))
    for result in compiled(plan):
        if result.error is not None:
            raise result.error
    return plan.folder / str(data["log_dir"])


def _specified(spec: Path) -> Spec:
    from combee_dspy.planning import read_spec

    try:
        return read_spec(spec)
    except PlanGapsError as error:
        _tell_gaps(error)
        raise typer.Exit(2) from error


def _tell_gaps(error: PlanGapsError) -> None:
    for gap in error.gaps:
        typer.echo(plain(scrub(gap)), err=True)


def plan(
    spec: Annotated[str, typer.Argument(metavar="SPEC.yaml|init", show_default=False)],
    target: Annotated[Path | None, typer.Argument(metavar="[SPEC.yaml]", show_default=False)] = None,
    run: Annotated[Path | None, typer.Option(help="For init: log_dir of the serial search, which is measured.")] = None,
    output: Annotated[Path | None, typer.Option(help="Where to write, without its ending; plan by default.")] = None,
    mlflow: Annotated[bool, typer.Option("--mlflow", help="Log the plan to MLflow as well.")] = False,
) -> None:
    """Write the plan of a wide search from a specification without gaps.

    \b
        combee plan init spec.yaml --run runs/serial    asks for what no run has measured
        combee plan spec.yaml                           writes plan.md, plan.html and plan.json

    Whatever is missing or vague is listed, one a line, and there is no plan (exit
    code 2). So it is where serial search has not converged, or the run file that
    the specification names makes a choice that would spoil the claim.
    """  # noqa: D301 - the backspace keeps lines apart on the help page
    if spec == "init":
        _init(target or Path("spec.yaml"), run)
        return
    file = Path(spec)
    found = _specified(file)
    from combee_dspy.planning import make_plan

    if found.run is not None:
        _check_run(file.parent / found.run, found)
    try:
        made = make_plan(found, file.parent)
    except PlanGapsError as error:
        _tell_gaps(error)
        raise typer.Exit(2) from error
    place = output or file.with_name("plan")
    made.write(place)
    if mlflow:
        _log(found.task.name, place)
    typer.echo(f"Wrote {place.with_suffix('.md')}, {place.with_suffix('.html')} and {place.with_suffix('.json')}")


def _check_run(config: Path, spec: Spec) -> None:
    import dspy

    from combee_dspy.cli.run import planned
    from combee_dspy.planning import check_search

    plan = planned(config)
    combee = plan.combee(dspy.LM(plan.proposer.model))  # never called: who judges is told by the names of models
    reasons = {name: one.reason for name, one in spec.overrides.items()}
    for one in plan.tasks:
        combee.metric_fn = one.task.metric or combee.metric_fn
        with dspy.context(lm=dspy.LM(one.lm.model)):
            check_search(combee, trainset=one.task.trainset, valset=one.task.valset, reasons=reasons)


def _log(name: str, place: Path) -> None:
    import mlflow

    with mlflow.start_run(run_name=f"plan {name}"):
        for ending in (".md", ".html", ".json"):
            mlflow.log_artifact(str(place.with_suffix(ending)))


def _known(run: Path, shown: str) -> dict[str, Any]:
    """Return what the journal of a serial search says of a specification's fields."""
    from combee_dspy import planning, tracking

    found = planning.diagnose(planning.Curve.of_run(run))
    typer.echo(f"Measured: {found.source}: {found.verdict}, {found.score:.3f} after {found.rollouts} rollouts.")
    known = {"serial.run": shown, "serial.score": round(found.score, 4),
             "serial.rollouts": found.to_plateau or found.rollouts}  # fmt: skip
    for part in tracking.audit(run)[:1]:
        known["serial.version"] = f"combee_dspy {part['version']}, dspy {part['dspy']}"
    for one in tracking.rollouts(run, where="purpose = 'validation' AND error IS NULL", limit=1):
        for field, name in (("task.inputs", "inputs"), ("task.outputs", "prediction")):
            try:
                values = json.loads(one[name] or "")
            except ValueError:
                continue  # kept as a hash
            if isinstance(values, dict) and values:
                known[field] = ", ".join(f"{key}: {type(value).__name__}" for key, value in values.items())
    return known


def _init(target: Path, run: Path | None) -> None:
    from combee_dspy import planning

    if target.exists():
        raise ArgumentValueError("SPEC.yaml", str(target), "is there already", "Name another file, or remove it.")
    known = {} if run is None else _known(run, os.path.relpath(run, target.parent))

    def answer(name: str, field: Any, problem: str) -> str:
        if problem:
            typer.echo(f"  {name} {problem}.")
        typer.echo(f"{name}: {field.description}. Such as: {field.examples[0]}")
        return str(typer.prompt(name, default="", show_default=False))

    text = yaml.safe_dump(planning.ask(known, answer), sort_keys=False, allow_unicode=True)
    target.write_text(text, encoding="utf-8")
    typer.echo(f"Wrote {target}: now combee plan {target}")
