"""The command line: ``combee``, one file a command."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from combee_dspy.cli import benchmarks, candidates, compare, demo, rollouts, run, runs, show, tune_scan
from combee_dspy.cli._commands import PluginGroup
from combee_dspy.cli._exit import EXIT_CODES, ExitCode, report
from combee_dspy.cli.bench import bench_app
from combee_dspy.cli.plugins import plugins_app
from combee_dspy.cli.track import track_app

__all__ = ["ExitCode", "app", "main"]

app = typer.Typer(
    name="combee",
    cls=PluginGroup,
    help=f"""Learn a DSPy program's prompts from many rollouts at once.

\b
    combee demo                watch a small model's prompt get better, in five minutes
    combee run CONFIG.yaml     your program, data and models; see combee run --help
    combee runs                the runs that were recorded
    combee rollouts RUN        a run's rollouts, chosen by --where
    combee show RUN CANDIDATE  one candidate; --html writes the run's report
    combee candidates RUN      every candidate of a run, with lineage and scores
    combee benchmarks          licence, size and source of each, and whether its rows are here
    combee plugins             every strategy that is installed
    combee compare             methods side by side: held-out against seconds, tokens, dollars
    combee bench speed         Combee beside dspy.GEPA, on a simulated service
    combee tune-scan           which copies and fan-in keep most lessons, on your model

{EXIT_CODES}""",
    no_args_is_help=True,
    add_completion=False,
    # Its tracebacks show local variables, and keys are among them.
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("demo", help=demo.HELP)(demo.demo)
app.command("compare", help=compare.HELP)(compare.compare)
app.command("run", help=run.HELP)(run.run)
app.command("runs", help=runs.HELP)(runs.runs)
app.command("rollouts", help=rollouts.HELP)(rollouts.rollouts)
app.command("show", help=show.HELP)(show.show)
app.command("benchmarks", help=benchmarks.HELP)(benchmarks.benchmarks)
app.command("candidates", help=candidates.HELP)(candidates.candidates)
app.command("tune-scan", help=tune_scan.HELP)(tune_scan.tune_scan)
app.add_typer(plugins_app, short_help="Show every strategy that is installed, or start a new one.")
app.add_typer(track_app, short_help="Complete a run's record in MLflow.")
app.add_typer(bench_app, short_help="Measure Combee beside its peers on the simulated service.")


def _version(wanted: bool) -> None:
    if wanted:
        from combee_dspy import __version__

        typer.echo(f"combee_dspy {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and end.")
    ] = False,
) -> None:
    pass


def main(arguments: Sequence[str] | None = None) -> None:
    """Run ``combee``.

    Args:
        arguments: What follows ``combee``; the process's own arguments by default.

    Raises:
        SystemExit: Always, with one of :class:`ExitCode`.
    """
    # DSPy would otherwise fetch a price list from the network with the first call; ours is in the package.
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    try:
        app(args=None if arguments is None else list(arguments), prog_name="combee")
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - the last line of defence: said, then an exit code
        sys.exit(report(error))
