"""``combee benchmarks``: what can be measured on, under which licence, and whether the rows are here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from combee_dspy import registry
from combee_dspy.cli._tables import show_facts
from combee_dspy.exceptions import ArgumentValueError, CombeeError

if TYPE_CHECKING:
    from combee_dspy.benchmarks import Benchmark

__all__ = ["benchmarks"]


def benchmarks(
    name: Annotated[str | None, typer.Argument(help="Read this one.", show_default=False)] = None,
    path: Annotated[Path | None, typer.Option(help="Its folder, file, address or hub id.", show_default=False)] = None,
    param: Annotated[
        list[str] | None, typer.Option(help="A further parameter, name=value; may be repeated.", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON.")] = False,
) -> None:
    """List the benchmarks: licence, size, where the rows come from, and whether they are here.

    \b
        combee benchmarks                                  all of them; reads no rows, uses no network
        combee benchmarks formula --path DIR               read these rows; their splits, digests and known noise
        combee benchmarks finer --path finer139.zip --param heldout=99

    Digests are what pin= takes: the same digests are the same rows in the same order.
    """  # noqa: D301 - the backspace keeps lines apart on the help page
    params = _params(param or [], {} if path is None else {"path": str(path)})
    if name is not None:
        found = [_shown(name, params, read=True)]
    elif params:
        raise ArgumentValueError("NAME", None, "is missing", "Say which benchmark --path and --param belong to.")
    else:
        found = [_listed(entry) for entry in registry.installed() if entry.kind == "benchmark"]
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    for number, item in enumerate(found):
        typer.echo("\n" if number else "", nl=False)
        show_facts(item)


def _listed(entry: registry.Entry) -> dict[str, Any]:
    source = {"from": f"{entry.distribution} {entry.version}".strip()}
    try:
        return _shown(entry.name, {}, read=False) | source
    except CombeeError as error:
        # One that is broken, or cannot be built without parameters, is there all the same.
        return {"benchmark": entry.name, **source, "problem": str(error)}


def _shown(name: str, params: dict[str, Any], *, read: bool) -> dict[str, Any]:
    built = cast("Benchmark", registry.build("benchmark", name, params))
    facts: dict[str, Any] = {"benchmark": name}
    if read:
        found = built.load()
        facts |= {"read from": found.source, **{split.name: f"{len(split)} rows" for split in found.splits}}
        facts |= {f"{split} digest": digest for split, digest in found.pins.items()}
        facts["known noise"] = f"{len(found.noisy_examples())} of the rows used"
        facts |= {f"note {number}": note for number, note in enumerate(found.notes, start=1)}
    card = built.card
    if card is not None:
        facts |= {"task": card.task, "size": card.size, "licence": card.licence, "scoring": card.scoring}
        facts |= {"sources": "; ".join(card.sources), "citation": card.citation}
    if not read:
        state = built.availability()
        here = {True: "yes", False: "no", None: "cannot be told"}[state.here]
        facts["here"] = f"{here}: {state.where}"
    return facts


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
