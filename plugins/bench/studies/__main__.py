"""Studies of this project's own parts. From plugins/bench: ``python -m studies NAME``."""

from __future__ import annotations

import typer

from combee_bench.commands import command
from studies import client, promises, scale
from studies.fortnight import drift, overhead, served
from studies.fortnight import study as fortnight
from studies.real import study as real
from studies.real.cells import StudyOptions

app = typer.Typer(help="Measure this project's own parts.", no_args_is_help=True)
for name, module, options in (
    ("client", client, client.ClientOptions),
    ("drift", drift, drift.DriftOptions),
    ("fortnight", fortnight, fortnight.FortnightOptions),
    ("overhead", overhead, overhead.OverheadOptions),
    ("promises", promises, promises.PromisesOptions),
    ("real", real, StudyOptions),
    ("scale", scale, scale.ScaleOptions),
    ("served", served, served.ServedOptions),
):
    run = command(f"python -m studies {name}", options, module.__name__)
    app.command(name, help=f"{run.__doc__}\n\n{module.__doc__}")(run)

if __name__ == "__main__":
    app()
