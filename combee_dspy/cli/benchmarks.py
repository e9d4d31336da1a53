"""``combee benchmarks``: what can be measured on, under which licence, and whether the rows are here."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from rich.console import Console
from rich.text import Text

from combee_dspy import registry
from combee_dspy.cli._exit import EXIT_CODES, Debug, guarded
from combee_dspy.exceptions import ArgumentValueError, CombeeError
from combee_dspy.tracking import one_line

if TYPE_CHECKING:
    from combee_dspy.benchmarks import BaseBenchmark, Benchmark

__all__ = ["HELP", "benchmarks"]

HELP = f"""List the benchmarks: licence, size, where the rows come from, and whether they are here.

\b
    combee benchmarks                                  all of them; reads no rows, uses no network
    combee benchmarks formula --path DIR               read these rows; their splits, digests and known noise
    combee benchmarks finer --path finer139.zip --param heldout=99
    combee benchmarks --json

Digests are what pin= takes: the same digests are the same rows in the same order.

{EXIT_CODES}"""

_WIDE = 400


@guarded
def benchmarks(
    name: Annotated[str | None, typer.Argument(help="Read this one.", show_default=False)] = None,
    path: Annotated[str | None, typer.Option(help="Its folder, file, address or hub id.", show_default=False)] = None,
    param: Annotated[
        list[str] | None, typer.Option(help="A further parameter, name=value; may be repeated.", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON.")] = False,
    debug: Debug = False,
) -> None:
    """List the benchmarks, or read one and show what was read."""
    if name is None:
        if path is not None or param:
            raise ArgumentValueError("NAME", None, "is missing", "Say which benchmark --path and --param belong to.")
        _write([_listed(entry) for entry in registry.installed() if entry.kind == "benchmark"], as_json)
        return
    params = _params(param or [], {} if path is None else {"path": path})
    built = cast("BaseBenchmark", registry.build("benchmark", name, params))
    card = _card(built)
    card.pop("here", None)
    _write([{"benchmark": name, **_read(built.load()), **card}], as_json)


def _listed(entry: registry.Entry) -> dict[str, Any]:
    found: dict[str, Any] = {"benchmark": entry.name, "from": f"{entry.distribution} {entry.version}".strip()}
    if entry.problem:
        return {**found, "problem": entry.problem}
    try:
        built = cast("BaseBenchmark", registry.build("benchmark", entry.name))
    except CombeeError as error:
        # One that cannot be built without parameters is there all the same.
        return {**found, "problem": f"cannot be built without parameters: {error}"}
    return {**found, **_card(built)}


def _card(built: BaseBenchmark) -> dict[str, Any]:
    card = built.card
    state = built.availability()
    here = {True: "yes", False: "no", None: "cannot be told"}[state.here]
    if card is None:
        return {"licence": "not stated", "here": f"{here}: {state.where}"}
    return {
        "task": card.task,
        "size": card.size,
        "licence": card.licence,
        "sources": [str(source) for source in card.sources],
        "here": f"{here}: {state.where}",
        "scoring": card.scoring,
        "citation": card.citation,
    }


def _read(found: Benchmark) -> dict[str, Any]:
    noisy = len(found.noisy_examples())
    return {
        "read from": found.source,
        "rows": {split.name: len(split) for split in found.splits},
        "digests": found.pins,
        "known noise": f"{noisy} of the rows used",
        "notes": list(found.notes),
    }


def _params(given: list[str], params: dict[str, Any]) -> dict[str, Any]:
    for item in given:
        name, equals, value = item.partition("=")
        if not equals or not name.isidentifier():
            raise ArgumentValueError("--param", item, "is not name=value", "For example: --param heldout=99.")
        try:
            params[name] = json.loads(value)
        except ValueError:
            params[name] = value
    return params


def _write(found: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    console = Console()
    for number, item in enumerate(found):
        if number:
            console.print()
        for key, value in item.items():
            for line in _lines(value):
                # What a plugin says may reach a terminal, but must not steer it.
                console.print(Text.assemble((f"{key:<12}", "bold"), one_line(line, _WIDE)), soft_wrap=True)


def _lines(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [f"{name}: {one}" for name, one in value.items()]
    if isinstance(value, list):
        return [str(one) for one in value] or ["none"]
    return [str(value)]
