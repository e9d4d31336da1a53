"""``combee verify``: whether a claim survives other seeds, slices and hardware."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from combee_dspy.exceptions import ArgumentValueError, RefusedError
from combee_dspy.files import check_folder, make_folder
from combee_dspy.hashing import row_hash
from combee_strategist.commands.diagnose import one_task, serially

if TYPE_CHECKING:
    from combee_dspy.cli._plan import Plan
    from combee_dspy.report import CombeeReport
    from combee_strategist.planning import Check, Kind

__all__ = ["verify"]

_HARDWARE = ("costs", "lms", "num_threads")


def verify(  # noqa: PLR0913 - each has a default
    config: Annotated[Path, typer.Argument(metavar="RUN.yaml", show_default=False)],
    hardware: Annotated[
        list[Path] | None,
        typer.Option(help="A file whose lms, num_threads or costs stand in place of the run's."),
    ] = None,
    seeds: Annotated[int, typer.Option(min=0, help="How many other seeds.")] = 2,
    by: Annotated[
        list[str] | None,
        typer.Option(help="Field of the held-out rows; the length of their inputs by default."),
    ] = None,
    gain: Annotated[
        float, typer.Option(min=0, help="The claimed held-out gain over the student, in points.")
    ] = 0.0,
    margin: Annotated[
        float, typer.Option(min=0.01, max=10, help="Points worse that still count as no worse.")
    ] = 2.0,
    faster: Annotated[
        float,
        typer.Option(min=0, help="Claim so many times serial speed at least; 0 for none."),
    ] = 1.0,
    output: Annotated[
        Path | None, typer.Option(help="Folder to write into; log_dir-verify by default.")
    ] = None,
) -> None:
    """Re-run a claim where it might not hold.

    RUN.yaml is the file of combee run, with a held-out set. The claim: the result is
    better than the student, no worse than serial search on the same rows, and faster.
    It is tried on the run itself, under other seeds, on slices of the held-out rows,
    and on other hardware: another service or another concurrency. Each try has a
    serial search beside it. Whatever has not run yet runs first.

    \b
        combee verify run.yaml --hardware small.yaml
        small.yaml:  num_threads: 4
                     lms: {task: {model: simulated, slots: 4, time_scale: 0.02}}

    Runs lie in log_dir-verify; verifying again buys nothing. Writes verify.json, .md
    and .html. Exit code 0 where the claim survives everywhere, 1 where it does not.
    """  # noqa: D301 - the backspace keeps lines apart on the help page
    from combee_dspy.cli import _plan
    from combee_strategist import planning

    data, folder = one_task(config), config.resolve().parent
    claim, seed = planning.Claim(gain / 100, margin / 100, faster), data.get("seed") or 0
    checks: list[Check] = []
    headline, simulated = "", False
    # Everything is read and checked before the first search is bought.
    variants = [
        (
            kind,
            where,
            _plan.plan_run(wide, folder),
            _plan.plan_run(_serial(data, wide, name), folder),
        )
        for kind, where, name, wide in _variants(data, seed, seeds, hardware or [])
    ]
    own = folder / f"{data['log_dir']}-verify"
    _check_folders(own, [plan for *_, wide, serial in variants for plan in (wide, serial)])
    rows = _rows(variants[0][2])
    slices = planning.slices_of(rows, by or ())
    for kind, where, plan, baseline in variants:
        report, serial = _searched(plan), _searched(baseline)
        report = replace(
            report, per_point=planning.over_serial(report, serial, margin=claim.margin)
        )
        if kind == "run":
            planning.check_headline(report)
            headline = str(report.per_point)
        checks += planning.check_run(kind, where, claim, report)
        if kind == "run":
            checks += planning.check_slices(claim, report, slices)
            simulated = "simulated" in (plan.tasks[0].lm.model, plan.proposer.model)
    source = f"{config.name}{' (a simulated service, no language model)' if simulated else ''}"
    verification = planning.Verification(claim, source, headline, tuple(checks))
    target = output or own
    make_folder(target)
    verification.save(target)
    typer.echo((target / "verify.md").read_text(encoding="utf-8"))
    typer.echo(f"Wrote {target / 'verify.html'}")
    if not verification.ready:
        raise typer.Exit(1)


def _check_folders(own: Path, plans: Sequence[Plan]) -> None:
    """Refuse a link in the place of a folder that this command names."""
    check_folder(own)
    for plan in plans[1:]:  # the first is the run itself, whose log_dir the user named
        check_folder(plan.folder / str(plan.config.arguments()["log_dir"]))


def _variants(
    data: dict[str, Any], seed: int, seeds: int, hardware: Sequence[Path]
) -> Iterator[tuple[Kind, str, str, dict[str, Any]]]:
    """Give what is searched: the file's own mapping, and others, each with its own log_dir."""
    from combee_dspy.cli import _reading

    yield "run", f"seed {seed}", f"seed {seed}", data
    place = f"{data['log_dir']}-verify"
    for other in range(seed + 1, seed + 1 + seeds):
        yield (
            "seed",
            f"seed {other}",
            f"seed {other}",
            {**data, "seed": other, "log_dir": f"{place}/seed {other}"},
        )
    for file in hardware:
        hardware_settings = _reading.read_mapping(file)
        if beyond := set(hardware_settings) - set(_HARDWARE):
            remedy = (
                f"A file of hardware holds {', '.join(_HARDWARE)}, and leaves the claim as it is."
            )
            raise ArgumentValueError(
                "--hardware", str(file), f"changes {', '.join(sorted(beyond))}", remedy
            )
        if {**data, **hardware_settings} == data:
            remedy = (
                "Give another num_threads, lms or costs: another service, or another concurrency."
            )
            raise ArgumentValueError("--hardware", str(file), "changes nothing of the run", remedy)
        # An edited file is other hardware, and is searched anew.
        name = f"{file.stem} {row_hash(hardware_settings)[:8]}"
        yield (
            "hardware",
            file.stem,
            name,
            {**data, **hardware_settings, "log_dir": f"{place}/on {name}"},
        )


def _serial(data: dict[str, Any], wide: dict[str, Any], name: str) -> dict[str, Any]:
    heldout = {
        name: value for name, value in (wide.get("heldout") or {}).items() if name != "baseline"
    }
    return {
        **serially(wide),
        "heldout": heldout,
        "log_dir": f"{data['log_dir']}-verify/serial {name}",
    }


def _searched(plan: Plan) -> CombeeReport:
    """Search, or read what was searched."""
    from combee_dspy.cli.run import compiled

    (result,) = compiled(plan)
    if result.report is None:
        raise result.error or RuntimeError("a search ended without a report")
    return result.report


def _rows(plan: Plan) -> Sequence[Any]:
    heldout: Any = plan.tasks[0].task.heldout
    if heldout is None:
        raise RefusedError(
            "a claim without held-out rows", "the search chose by the others", "Name data.heldout."
        )
    return heldout.rows
