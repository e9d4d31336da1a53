"""``combee plan``: a specification without gaps, and the plan of a wide search."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import yaml

from combee_dspy.cli._tables import plain
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.files import make_folder, write_plain
from combee_dspy.lms.redact import scrub
from combee_strategist.exceptions import PlanGapsError

if TYPE_CHECKING:
    from combee_dspy import Combee
    from combee_strategist.planning import Spec

__all__ = ["plan"]


_ENDINGS = (".md", ".html", ".json")


def plan(
    spec: Annotated[str, typer.Argument(metavar="SPEC.yaml|init", show_default=False)],
    target: Annotated[Path | None, typer.Argument(metavar="SPEC.yaml", show_default=False)] = None,
    run: Annotated[
        Path | None, typer.Option(help="For init: log_dir of the serial search, which is measured.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="Where to write, without its ending; plan by default.")
    ] = None,
    mlflow: Annotated[
        bool, typer.Option("--mlflow", help="Log the plan to MLflow as well.")
    ] = False,
) -> None:
    """Write the plan of a wide search from a specification without gaps.

    \b
        combee plan init spec.yaml --run runs/serial    asks for what no run has measured;
                                                        without a terminal, leaves it empty
        combee plan spec.yaml                           writes plan.md, plan.html and plan.json

    There is no plan (exit code 2) while a field is missing or vague, serial search
    has not converged, or the run file makes a choice that would spoil the claim.
    Each reason is one line.
    """  # noqa: D301 - the backspace keeps lines apart on the help page
    if spec == "init":
        _init(target or Path("spec.yaml"), run)
        return
    from combee_strategist.planning import make_plan, read_spec

    file = Path(spec)
    place = output or file.with_name("plan")
    place = place.with_suffix("") if place.suffix in _ENDINGS else place
    try:
        specification = read_spec(file)
        combee = (
            None
            if specification.run is None
            else _checked_run(file.parent / specification.run, specification)
        )
        written_plan = make_plan(specification, file.parent, combee)
    except PlanGapsError as error:
        for gap in error.gaps:
            typer.echo(plain(scrub(gap)), err=True)
        raise typer.Exit(2) from error
    make_folder(place.parent)
    written_plan.write(place)
    if mlflow:
        _log(specification.task.name, place)
    typer.echo(f"Wrote {', '.join(f'{place}{ending}' for ending in _ENDINGS)}")


def _checked_run(config: Path, spec: Spec) -> Combee:
    import dspy

    from combee_dspy.cli.run import planned
    from combee_strategist.planning import check_search

    plan = planned(config)
    combee = plan.combee(
        dspy.LM(plan.proposer.model)
    )  # never called: who judges is told by the names of models
    reasons = {name: task.reason for name, task in spec.overrides.items()}
    for task in plan.tasks:
        metric = task.task.metric or combee.settings.metric
        combee.settings = replace(combee.settings, metric=metric)
        with dspy.context(lm=dspy.LM(task.lm.model)):
            check_search(
                combee, trainset=task.task.trainset or [], valset=task.task.valset, reasons=reasons
            )
    return combee


def _log(name: str, place: Path) -> None:
    import mlflow

    with mlflow.start_run(run_name=f"plan {name}"):
        for ending in _ENDINGS:
            mlflow.log_artifact(f"{place}{ending}")


def _measured(run: Path, place: str) -> dict[str, Any]:
    """Return what the journal of a serial search says of a specification's fields."""
    from combee_dspy import tracking
    from combee_strategist import planning

    diagnosis = planning.diagnose(planning.Curve.of_run(run))
    typer.echo(
        f"Measured: {diagnosis.source}: {diagnosis.verdict},"
        f" {diagnosis.score:.3f} after {diagnosis.rollouts} rollouts."
    )
    answers = {
        "serial.run": place,
        "serial.score": round(diagnosis.score, 4),
        "serial.rollouts": diagnosis.to_plateau or diagnosis.rollouts,
    }
    answers["serial.method"] = "the same search, serially: minibatches of three, as dspy.GEPA"
    known: list[dict[str, Any]] = tracking.overview(run)
    for row in known[:1]:
        if row["heldout_n"]:
            answers |= {
                "task.baseline": row["heldout_before"],
                "serial.score": row["heldout_after"],
            }
        for part in row["audit"][:1]:
            answers["serial.version"] = f"combee_dspy {part['version']}, dspy {part['dspy']}"
    condition = "purpose = 'validation' AND error IS NULL"
    for rollout in tracking.rollouts(run, where=condition, limit=1):
        for field, name in (("task.inputs", "inputs"), ("task.outputs", "prediction")):
            try:
                values = json.loads(str(rollout[name] or ""))
            except ValueError:
                continue  # kept as a hash
            if isinstance(values, dict) and values:
                answers[field] = ", ".join(
                    f"{key}: {type(value).__name__}" for key, value in values.items()
                )
    return answers


def _init(target: Path, run: Path | None) -> None:
    from combee_strategist import planning

    if os.path.lexists(target):
        raise ArgumentValueError(
            "SPEC.yaml", str(target), "is there already", "Name another file, or remove it."
        )
    answers = {} if run is None else _measured(run, os.path.relpath(run, target.parent))

    empty: list[str] = []

    def answer(name: str, field: Any, problem: str) -> str | None:
        if empty:
            empty.append(name)
            return None
        if problem:
            typer.echo(f"  {name} {problem}.")
        typer.echo(f"{name}: {field.description}. Such as: {field.examples[0]}")
        try:
            return str(typer.prompt(name, default="", show_default=False))
        except typer.Abort:
            if sys.stdin.isatty():
                raise
            typer.echo()  # nobody is there to ask, and the question ends its line
            empty.append(name)
            return None

    text = yaml.safe_dump(planning.ask(answers, answer), sort_keys=False, allow_unicode=True)
    make_folder(target.parent)
    write_plain(target, _explain(text, empty))
    what = f"{len(empty)} fields are empty: fill them in, then" if empty else "now"
    typer.echo(f"Wrote {target}: {what} combee plan {target}")


def _explain(text: str, empty: Sequence[str]) -> str:
    """Return a specification in which each empty field says what it is for."""
    from combee_strategist import planning

    fields = dict(planning.questions())
    for name in empty:
        key, field = name.rpartition(".")[2], fields[name]
        comment = f"# {field.description} (such as: {(field.examples or [''])[0]})"
        text = text.replace(f"{key}: null\n", f"{key}:  {comment}\n", 1)
    return text
