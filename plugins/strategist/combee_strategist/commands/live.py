"""``combee live``: learns from what servers have served, and ships what is proven."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from combee_dspy.cli._tables import plain, show_table
from combee_dspy.exceptions import JournalError, JournalHeldError
from combee_strategist.exceptions import RegistryError

if TYPE_CHECKING:
    from combee_strategist.live import Live

__all__ = ["live"]


def live(  # noqa: PLR0913 - each has a default
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help="The program's name in the registry."),
    ],
    config: Annotated[
        Path, typer.Argument(metavar="CONFIG.yaml", help="What it learns from and with.")
    ],
    once: Annotated[bool, typer.Option("--once", help="Do what is due now, and end.")] = False,
    seconds: Annotated[float, typer.Option(min=0.1, help="Seconds between two looks.")] = 60.0,
    approve: Annotated[int | None, typer.Option(help="Approve this version.")] = None,
    reject: Annotated[int | None, typer.Option(help="Reject this version.")] = None,
    remove: Annotated[str | None, typer.Option(help="Remove this lesson for good.")] = None,
    who: Annotated[str | None, typer.Option(help="Who decides; this process's user.")] = None,
    why: Annotated[str, typer.Option(help="The reason, for the audit.")] = "",
) -> None:
    """Learn from served requests and their labels, and ship what is proven, until interrupted.

    Your service calls live.serve() with the same name and log_dir; this is the one
    process that learns. --approve, --reject and --remove record a person's decision
    for it.

    \b
        program: my_package.qa:Program
        metric: my_package.qa:metric
        slices: my_package.qa:topic
        trusted: trusted.jsonl
        inputs: [question]
        lms: {task: openai/gpt-5-nano, proposer: openai/gpt-5}
        learning: {hours: 24, tokens: 2000000}
        gate: {share: 0.25}
        plan: {epsilon: 0.02, pairs: 200, hours: 24}
        approve: human
        registry: sqlite:///mlflow.db
    """  # noqa: D301 - the backspace keeps lines apart on the help page
    with ExitStack() as stack:
        speaks = not (approve is None and reject is None and remove is None)
        process = _open(name, config, stack, speaks)
        stack.callback(process.close)
        if approve is not None:
            process.approve(approve, who=who, why=why)
        if reject is not None:
            process.reject(reject, who=who, why=why)
        if remove is not None:
            process.remove(remove, who=who, why=why)
        if speaks:
            typer.echo("Recorded. The learner acts on it at its next look.")
            return
        stop = threading.Event()
        while True:
            try:
                decided = process.tick()
            except (RegistryError, JournalError, OSError) as error:
                if once or isinstance(error, JournalHeldError):
                    raise
                typer.echo(plain(str(error)), err=True)  # it is asked again
                decided = ()
            columns = ("action", "version", "session", "why")
            if decided:
                show_table(
                    [{key: getattr(item, key) for key in columns} for item in decided],
                    folded=("why",),
                )
            if once or stop.wait(seconds):
                break
        typer.echo(f"{plain(name)}: {len(process.decisions())} decisions.")


def _open(name: str, config: Path, stack: ExitStack, speaks: bool) -> Live:
    import dspy
    from pydantic import Field, TypeAdapter, ValidationError

    from combee_dspy.cli._config import LMConfig, LMsConfig, Section
    from combee_dspy.cli._lms import check_lm, locate, make_lm
    from combee_dspy.cli._reading import (
        add_module_folders,
        load_object,
        read_examples,
        read_mapping,
    )
    from combee_dspy.exceptions import ArgumentValueError
    from combee_dspy.options import Privacy
    from combee_strategist.canary import CanaryPlan
    from combee_strategist.live import Gate, Learning, Live

    class LiveConfig(Section):
        """The file of ``combee live``."""

        program: str
        metric: str
        lms: LMsConfig
        slices: str | None = None
        trusted: str | None = None
        inputs: tuple[str, ...] = ()
        learning: Learning = Field(default_factory=Learning)
        gate: Gate = Field(default_factory=Gate)
        plan: CanaryPlan = Field(default_factory=CanaryPlan)
        privacy: Privacy = Field(default_factory=Privacy)
        approve: Literal["rules", "human"] = "rules"
        log_dir: str | None = None
        registry: str | None = None

    folder = config.resolve().parent
    try:
        file = TypeAdapter(LiveConfig).validate_python(read_mapping(config))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"])) or "CONFIG"
        remedy = "See combee live --help."
        raise ArgumentValueError(place, str(config), first["msg"], remedy) from None
    add_module_folders(folder)

    def lm(place: str, settings: LMConfig) -> Any:
        settings = locate(settings, folder)
        if speaks:  # no LM is asked, so whoever reviews needs no key
            settings = settings.model_copy(update={"api_key_env": None})
        check_lm(place, settings, simulated=False)
        return make_lm(settings, [], 0, stack)

    def named(place: str, target: str | None) -> Any:
        return None if target is None else load_object(place, target)

    program = named("program", file.program)
    task = lm("lms.task", file.lms.task)
    proposer = lm("lms.proposer", file.lms.proposer) if file.lms.proposer else task
    trusted = read_examples("trusted", folder / file.trusted, file.inputs) if file.trusted else ()
    more = {} if file.slices is None else {"slices": named("slices", file.slices)}
    return Live(
        name,
        program if isinstance(program, dspy.Module) else program(),
        metric=named("metric", file.metric),
        reflection_lm=proposer,
        lm=task,
        trusted=trusted,
        learning=file.learning,
        gate=file.gate,
        plan=file.plan,
        privacy=file.privacy,
        approve=file.approve,
        log_dir=None if file.log_dir is None else folder / file.log_dir,
        uri=_located(file.registry, folder),
        **more,
    )


def _located(uri: str | None, folder: Path) -> str | None:
    """Return a store's address: a SQLite file's path starts from the file's folder, as others."""
    prefix = "sqlite:///"
    if uri is None or not uri.startswith(prefix):
        return uri
    return f"{prefix}{folder / uri.removeprefix(prefix)}"
