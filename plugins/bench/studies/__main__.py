"""Studies of this project's own parts. From plugins/bench: ``python -m studies NAME``."""

from __future__ import annotations

import typer

from combee_bench.commands import command
from studies import client

app = typer.Typer(help="Measure this project's own parts.", no_args_is_help=True)
run = command("python -m studies client", client.ClientOptions, client.__name__)
app.command("client", help=f"{run.__doc__}\n\n{client.__doc__}")(run)
app.callback()(lambda: None)  # with one command and no callback, typer would make no group

if __name__ == "__main__":
    app()
