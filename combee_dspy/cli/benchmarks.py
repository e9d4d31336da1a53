"""``combee benchmarks``: lists benchmarks with their licence, and whether their rows are here."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from combee_dspy import registry
from combee_dspy.cli._pairs import read_pairs
from combee_dspy.cli._tables import show_facts
from combee_dspy.exceptions import ArgumentValueError, CombeeError

if TYPE_CHECKING:
    from combee_dspy.benchmarks import Benchmark

_ANSWERS = {True: "yes", False: "no", None: "cannot be told"}


def benchmarks(
    name: Annotated[str | None, typer.Argument(help="Read this one.", show_default=False)] = None,
    path: Annotated[
        str | None, typer.Option(help="Its folder, file, address or hub id.", show_default=False)
    ] = None,
    param: Annotated[
        list[str], typer.Option(help="A further parameter, name=value; may be repeated.")
    ] = [],  # noqa: B006 - typer's way
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON.")] = False,
) -> None:
    """List the benchmarks: licence, size, where the rows come from, and whether they are here.

    \b
        combee benchmarks                       all of them; reads no rows, uses no network
        combee benchmarks formula --path DIR    read these rows: splits, digests and known noise
        combee benchmarks finer --path DIR --param heldout=99

    Digests are what pin= takes: the same digests are the same rows in the same order.
    """  # noqa: D301 - the backspace keeps lines apart on the help page
    params = read_pairs("--param", param) | ({} if path is None else {"path": path})
    if name is not None:
        rows = [{"benchmark": name, **_rows(name, params), **_card(name, params)}]
    elif params:
        remedy = "Say which benchmark --path and --param belong to."
        raise ArgumentValueError("NAME", None, "is missing", remedy)
    else:
        rows = [_listed(entry) for entry in registry.installed() if entry.kind == "benchmark"]
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    for item in rows:
        show_facts(item)
        typer.echo()


def _listed(entry: registry.Entry) -> dict[str, str]:
    facts = {"benchmark": entry.name, "from": f"{entry.distribution} {entry.version}".strip()}
    try:
        return facts | _card(entry.name, {})
    except CombeeError as error:
        # One that is broken, or cannot be built without parameters, is there all the same.
        return {**facts, "problem": str(error)}


def _card(name: str, params: dict[str, Any]) -> dict[str, str]:
    benchmark = cast("Benchmark", registry.build("benchmark", name, params))
    facts: dict[str, str] = {}
    if (card := benchmark.card) is not None:
        facts = {key: getattr(card, key) for key in ("task", "size", "licence", "scoring")}
        facts |= {"sources": "; ".join(card.sources), "citation": card.citation}
    state = benchmark.availability()
    return {**facts, "here": f"{_ANSWERS[state.here]}: {state.where}"}


def _rows(name: str, params: dict[str, Any]) -> dict[str, str]:
    from combee_dspy.benchmarks import load_benchmark

    loaded = load_benchmark(name, **params)
    comparable = f"{_ANSWERS[loaded.comparable]}: {loaded.standing}"
    return {
        "read from": loaded.source,
        **{split.name: f"{len(split)} rows, digest {split.digest}" for split in loaded.splits},
        **({"comparable with the paper": comparable} if loaded.standing else {}),
        "known noise": f"{len(loaded.noisy_examples())} of the rows used",
        **{f"note {number}": note for number, note in enumerate(loaded.notes, start=1)},
    }
