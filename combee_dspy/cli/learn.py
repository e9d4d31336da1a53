"""``combee learn``: learns lessons from recorded rollouts; nothing runs again."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from combee_dspy import registry
from combee_dspy.cli._pairs import read_pairs, split_pairs
from combee_dspy.cli._tables import plain, show_facts
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.files import check_plain, read_plain

if TYPE_CHECKING:
    from combee_dspy.learning import LearnedLessons
    from combee_dspy.traces import Selection, TraceSource

_LINE = 400
_KINDS = 20


def learn(  # noqa: PLR0913 - one parameter an option
    source: Annotated[str, typer.Argument(help="A file, a journal, or the name of a source.")],
    lm: Annotated[str, typer.Option(help="The model that reads, such as openai/gpt-5.")] = "",
    api_base: Annotated[str, typer.Option(help="Address of its service.")] = "",
    api_key_env: Annotated[str, typer.Option(help="Variable that holds its key.")] = "",
    field: Annotated[
        list[str], typer.Option(help="Which field of a record is what: inputs=question; repeat it.")
    ] = [],  # noqa: B006 - typer's way
    param: Annotated[
        list[str], typer.Option(help="A parameter of the source, name=value; repeat it.")
    ] = [],  # noqa: B006 - typer's way
    prompt: Annotated[
        Path | None, typer.Option(help="The prompt that answered.", show_default=False)
    ] = None,
    drop: Annotated[
        list[str], typer.Option(help="Skip records whose tag matches: tag=pattern; repeat it.")
    ] = [],  # noqa: B006 - typer's way
    tokens: Annotated[int, typer.Option(help="Read at most so many tokens of records.")] = 500_000,
    out: Annotated[
        Path | None,
        typer.Option(help="Write lessons.json and prompt.md there.", show_default=False),
    ] = None,
    skill: Annotated[str, typer.Option(help="Write, or continue, a skill of this name.")] = "",
    log_dir: Annotated[
        Path | None,
        typer.Option(help="The journal: run again to go on.", show_default=False),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be read, and ask no LM.")
    ] = False,
) -> None:
    """Learn lessons from recorded rollouts. Nothing is run again.

    \b
        combee learn logs.jsonl --lm openai/gpt-5 --out learned
        combee learn logs.jsonl --field inputs=question --field outputs.answer=reply.text \\
            --field score=stars --dry-run
        combee learn runs/today --lm openai/gpt-5                  # a journal of Combee's
        combee learn mlflow --param experiment=support --lm openai/gpt-5
        combee learn hugging-face --param path=owner/name --field inputs=question --lm …

    A file is JSON lines, or OpenTelemetry's spans as JSON. Never give a key itself: name its
    environment variable. Nothing validates the lessons here; combee run does.
    """  # noqa: D301 - the backspace keeps lines apart on the help page
    from combee_dspy import learn_lessons
    from combee_dspy.cli._config import LMConfig
    from combee_dspy.cli._lms import check_lm, make_lm
    from combee_dspy.lessons import Book
    from combee_dspy.skills import read_skill
    from combee_dspy.traces import Selection

    traces = _open(source, read_pairs("--param", param), _fields(field))
    selection = Selection(tokens=tokens, drop=split_pairs("--drop", drop))
    if dry_run:
        _show_selection(traces, selection)
        return
    if not lm:
        remedy = "Name the model that reads, or give --dry-run."
        raise ArgumentValueError("--lm", None, "is missing", remedy)
    config = LMConfig(model=lm, api_base=api_base or None, api_key_env=api_key_env or None)
    check_lm("--lm", config, simulated=False)
    folder = out / skill if out and skill else None
    with ExitStack() as stack:
        learned = learn_lessons(
            traces,
            reflection_lm=make_lm(config, [], 0, stack),
            task=_read_prompt(prompt) if prompt else "",
            selection=selection,
            log_dir=log_dir,
            book=read_skill(folder).book if folder and folder.is_dir() else Book(),
        )
    _show(learned, learned.save(out, skill) if out else ())


def _read_prompt(path: Path) -> str:
    try:
        return read_plain(path, follow=True).decode("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        problem = f"cannot be read: {error}"
        raise ArgumentValueError("--prompt", str(path), problem, "Give a text file.") from None


def _show_selection(traces: TraceSource, selection: Selection) -> None:
    from combee_dspy.lms.redact import personal, scrub
    from combee_dspy.traces import open_traces

    marks = personal({})
    chosen = selection.choose(open_traces(traces), lambda text: marks(scrub(text)))
    typer.echo(f"{chosen}. Nothing was asked: leave out --dry-run to learn.")
    for kind, count in sorted(chosen.kinds.items(), key=lambda item: -item[1])[:_KINDS]:
        typer.echo(f"  {count} × {plain(kind, _LINE)}")


def _show(learned: LearnedLessons, files: tuple[Path, ...]) -> None:
    book = learned.book
    waiting = sum(lesson.state == "waiting" for lesson in book.lessons)
    retired = len(book.lessons) - len(book.served) - waiting
    tokens = sum(row.prompt_tokens + row.completion_tokens for row in learned.usage)
    facts: dict[str, object] = {
        "not validated": "nothing was run: combee run with valset tests what a prompt is worth",
        "traces": learned.selected,
        "lessons": f"{len(book.served)} served, {waiting} wait for more evidence,"
        f" {retired} retired",
        "calls": f"{sum(row.calls for row in learned.usage)}, {tokens:,} tokens",
    }
    show_facts(facts | ({"written": files[-1]} if files else {}))
    typer.echo()
    for lesson in book.served:
        count = len(lesson.sources)
        typer.echo(f"- {plain(lesson.text, _LINE)} ({count} trace{'s' * (count != 1)})")


def _open(source: str, params: dict[str, object], fields: dict[str, object]) -> TraceSource:
    """Return the source of a file by what it holds, or the source of a name."""
    path, name = Path(source), source
    if path.exists():
        params["path"] = source
        is_journal = path.is_dir() or path.suffix == ".sqlite"
        name = "journal" if is_journal else "otlp" if _holds_spans(path) else "json-lines"
    elif source.endswith((".jsonl", ".json", ".sqlite")) or "/" in source:
        remedy = "Give the path of a file that is there, or the name of a source."
        raise ArgumentValueError("SOURCE", source, "is no file", remedy)
    if fields:
        params["fields"] = fields
    return cast("TraceSource", registry.build("source", name, params))


def _holds_spans(path: Path) -> bool:
    check_plain(path.resolve())  # a pipe without a writer would never open
    with path.open("rb") as file:
        return b'"resourceSpans"' in file.readline(1_000)


def _fields(items: list[str]) -> dict[str, object]:
    """Return a mapping of fields: ``inputs=a,b`` are two paths, ``inputs.q=a`` names its value.

    Raises:
        ArgumentValueError: An attribute is named both ways.
    """
    fields: dict[str, object] = {}
    for name, path in split_pairs("--field", items).items():
        attribute, dot, target = name.partition(".")
        named = fields.setdefault(
            attribute, {} if dot else path.split(",") if "," in path else path
        )
        if isinstance(named, dict) and dot:
            named[target] = path
        elif dot or isinstance(named, dict):
            problem = f"says all of {attribute} and a part of it"
            raise ArgumentValueError("--field", name, problem, "Name each value, or none.")
    return fields
