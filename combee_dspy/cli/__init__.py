"""The command line: ``combee``.

Nothing here imports DSPy before a command needs it, so that help is there at once.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from combee_dspy.cli import queries
from combee_dspy.cli._group import INTERRUPTED, CombeeGroup, say
from combee_dspy.cli.benchmarks import benchmarks
from combee_dspy.cli.demo import demo
from combee_dspy.cli.learn import learn
from combee_dspy.cli.plugins import plugins_app
from combee_dspy.cli.run import run
from combee_dspy.cli.skill import skill

__all__ = ["app", "main"]

app = typer.Typer(
    name="combee",
    cls=CombeeGroup,
    help="""Learn a DSPy program's prompts from many rollouts at once.

RUN is a run's log_dir. Exit codes: 0 done, 1 a fault in a program, a plugin or
combee, 2 something cannot be used or went wrong, with one line that says what.

\b
  combee demo --recorded        replay a real run; no model runs
  combee run qa.yaml --dry-run  check a file and estimate its cost
  combee show runs/today        see what came of a run

combee COMMAND --help has examples of each.""",
    no_args_is_help=True,
    # Its tracebacks show local variables, and keys are among them.
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for _command in (
    demo,
    run,
    learn,
    skill,
    queries.runs,
    queries.show,
    queries.report,
    queries.rollouts,
    queries.candidates,
):
    app.command(_command.__name__)(_command)
app.command("benchmarks")(benchmarks)
app.add_typer(plugins_app, name="plugins")
_track = typer.Typer(
    help="Complete a run's record in MLflow.", no_args_is_help=True, rich_markup_mode=None
)
_track.command("replay")(queries.replay)
_track.callback()(lambda: None)  # with one command and no callback, typer would make no group
app.add_typer(_track, name="track")


def _version(wanted: bool) -> None:
    if wanted:
        from combee_dspy import __version__

        typer.echo(f"combee_dspy {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Show the version and end."
        ),
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error, without keys.")
    ] = False,
) -> None:
    pass


def _interrupted(number: int, frame: Any) -> None:
    """Interrupt; once more ends the process, wherever it is: click would leave Python to wait for
    threads that hang.
    """
    signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
    signal.default_int_handler(number, frame)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run ``combee`` with what follows it, the process's own arguments by default; ends with its
    exit code.
    """
    # DSPy would otherwise fetch a price list from the network with the first call; ours is in the
    # package.
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    if arguments is None and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupted)
    try:
        app(args=None if arguments is None else list(arguments), prog_name="combee")
    except SystemExit as ended:
        if ended.code == INTERRUPTED and arguments is None:
            # Python itself would wait for threads of the program that wait for a service that
            # hangs.
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(INTERRUPTED)
        raise
    except Exception as error:  # noqa: BLE001 - the last line of defence: said without keys, then an exit code
        sys.exit(say(error, debug=True))
