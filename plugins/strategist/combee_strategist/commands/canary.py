"""``combee publish`` and ``combee canary``: from a run to production, and back."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Annotated

import typer

from combee_dspy.cli._tables import plain, show_facts, show_table
from combee_dspy.files import make_folder

__all__ = ["canary_app", "publish"]

_Name = Annotated[
    str,
    typer.Argument(metavar="NAME", help="The program's name in the registry.", show_default=False),
]
_Uri = Annotated[
    str | None, typer.Option("--registry", help="MLflow's store; MLflow's own choice by default.")
]
_Dir = Annotated[
    Path | None,
    typer.Option("--log-dir", help="The servers' journals; combee_serving/NAME by default."),
]
_Who = Annotated[
    str | None, typer.Option(help="Who does it, for the audit; this process's user by default.")
]
_Why = Annotated[str, typer.Option(help="The reason, for the audit.")]


_BAR = 24


def publish(  # noqa: PLR0913 - each has a default
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="The run's log_dir.", show_default=False)
    ],
    name: Annotated[
        str, typer.Option(help="The program's name in the registry.", show_default=False)
    ],
    epsilon: Annotated[
        float, typer.Option(help="How much worse it may be and still be promoted, in score units.")
    ] = 0.02,
    target: Annotated[
        float | None, typer.Option(help="Least held-out score; the student's by default.")
    ] = None,
    level: Annotated[
        float, typer.Option(help="Highest chance that a worse version is promoted.")
    ] = 0.05,
    pairs: Annotated[int, typer.Option(help="Scored pairs before a promotion, at least.")] = 200,
    hours: Annotated[float, typer.Option(help="Hours before a promotion, at least.")] = 24.0,
    errors: Annotated[
        float, typer.Option(help="Withdraw it if it fails in so much more of its requests.")
    ] = 0.2,
    score: Annotated[
        float | None, typer.Option(help="Withdraw it below this mean live score.")
    ] = None,
    task: Annotated[
        str | None, typer.Option("--run", help="One of several tasks, by its name.")
    ] = None,
    uri: _Uri = None,
    who: _Who = None,
    why: _Why = "",
) -> None:
    """Register what a run returned as the challenger.

    It needs a held-out receipt. The terms of its canary (epsilon to score) are fixed
    here: another epsilon is another version. A canary of less than 24 hours needs a
    reason (--why), which the audit keeps. The first time, the program that the run
    began with is put into production.
    """
    from combee_strategist import canary

    plan = canary.CanaryPlan(epsilon, target, level, pairs, hours, errors, score)
    number = canary.publish(run, name, plan, task=task, uri=uri, who=who, why=why)
    typer.echo(
        f"{plain(name)} version {number} is the challenger."
        f" Next: combee canary status {plain(name)}"
    )


canary_app = typer.Typer(
    help="Try, promote and roll back a program.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@canary_app.command("status")
def _status(
    name: _Name,
    uri: _Uri = None,
    log_dir: _Dir = None,
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON.")] = False,
    output: Annotated[
        Path | None,
        typer.Option(help="Write a page as well, here; without its ending.", show_default=False),
    ] = None,
) -> None:
    """Show both versions, and what a promotion still lacks."""
    from combee_strategist import canary

    standing = canary.status(canary.Registry(name, uri), log_dir)
    if output is not None:
        place = output.with_suffix("") if output.suffix in (".html", ".md") else output
        make_folder(place.parent)
        canary.write_canary_page(standing, place)
        typer.echo(f"Wrote {place}.html", err=as_json)
    plan = standing.plan.to_dict() if standing.plan else {}
    if as_json:
        record = {
            **{part.name: getattr(standing, part.name) for part in fields(standing)},
            "plan": plan,
        }
        typer.echo(
            json.dumps({key: None if value != value else value for key, value in record.items()})
        )
        return
    facts = {key: getattr(standing, key) for key in ("name", "production", "challenger", "heldout")}
    if standing.challenger is not None:
        facts |= {
            "pairs": _bar(standing.pairs, plan["pairs"]),
            "hours": _bar(round(standing.hours, 2), plan["hours"]),
        }
        facts["difference"] = f"{standing.difference:+.4f}" if standing.pairs else "none"
        facts["bounds"] = (
            f"{standing.low:+.4f} to {standing.high:+.4f},"
            f" each wrong at most {plan['level']:.0%} of the time"
        )
        facts["shadows"] = (
            ", ".join(f"{count} {what}" for what, count in standing.shadows.items()) or "none"
        )
        facts["plan"] = ", ".join(
            f"{key} {value}" for key, value in plan.items() if value is not None
        )
    facts["may be promoted"] = f"no: {'; '.join(standing.missing)}" if standing.missing else "yes"
    show_facts(facts)
    show_table(standing.versions)
    columns = ("at", "action", "from", "to", "who", "why", "carried_out")
    show_table([{key: line[key] for key in columns} for line in standing.audit])


def _bar(reached: float, wanted: float) -> str:
    """Return how far a canary has come towards what its plan asks."""
    full = round(_BAR * min(1.0, reached / wanted)) if wanted else _BAR
    return f"{'█' * full}{'░' * (_BAR - full)} {reached:,} of {wanted:,g}"


@canary_app.command("promote")
def _promote(
    name: _Name, uri: _Uri = None, log_dir: _Dir = None, who: _Who = None, why: _Why = ""
) -> None:
    """Put the challenger into production.

    Refused, with all that is missing, where its plan does not allow it.
    """
    from combee_strategist import canary

    standing = canary.promote(canary.Registry(name, uri), log_dir, who=who, why=why)
    typer.echo(
        f"{plain(name)} version {standing.challenger} is in production;"
        f" version {standing.production} was before."
    )


@canary_app.command("rollback")
def _rollback(
    name: _Name,
    challenger: Annotated[
        bool, typer.Option("--challenger", help="End the trial of the challenger instead.")
    ] = False,
    uri: _Uri = None,
    who: _Who = None,
    why: _Why = "",
) -> None:
    """Put the version before into production.

    Needs the registry alone: no journal, no run, no redeploy.
    """
    from combee_strategist import canary

    registry = canary.Registry(name, uri)
    if challenger:
        version = canary.withdraw(registry, who=who, why=why)
        typer.echo(f"{plain(name)} version {version} is on trial no more.")
    else:
        typer.echo(
            f"{plain(name)} version {canary.rollback(registry, who=who, why=why)} is in production."
        )
