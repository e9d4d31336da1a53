"""``combee tune-scan``: which copies and fan-in keep most lessons, on the model that will scan."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from combee_dspy.cli._exit import EXIT_CODES, Debug, guarded
from combee_dspy.exceptions import ArgumentValueError, ServiceError

if TYPE_CHECKING:
    from combee_dspy.retention import ProbeResult, RetentionFit, RetentionLaws, TunedScan
    from combee_dspy.strategies import PredictFn

__all__ = ["HELP", "tune_scan"]

HELP = f"""Which copies and fan-in keep most of what reflections teach.

Plants invented facts in records and in lists of lessons, asks the model to
learn and to merge, as a scan does, and reads off what it kept at each size:
q(m). From that it predicts how many lessons survive a scan of --reflections
records for each p (copies) and fan-in, and names the cheapest of the best.

\b
    combee tune-scan                                  a simulated service
    combee tune-scan --lm openai/gpt-5-mini --reflections 120
    combee tune-scan --lm openai/my-model --api-base http://gpu:8000/v1 --api-key-env MY_KEY

A model is asked (sizes × calls × 3) times. Facts that are planted are short and
unlike each other; real lessons are neither, so take q(m) as an upper bound.

{EXIT_CODES}"""

_LABEL = "simulated service, no language model"
_MODEL = "Model"
_SCAN = "Scan"
_PROBE = "Probe"
# What parallel-scan merges by default; the advice names it where it is another.
_MERGE_FAN_IN = 32


@guarded
def tune_scan(  # noqa: PLR0913 - one parameter an option
    lm: Annotated[
        str | None,
        typer.Option(
            help="Model, by DSPy's name, or 'embedded'; a simulated service by default.", rich_help_panel=_MODEL
        ),
    ] = None,
    api_base: Annotated[
        str | None, typer.Option(help="Address of an OpenAI-compatible service.", rich_help_panel=_MODEL)
    ] = None,
    api_key_env: Annotated[
        str | None, typer.Option(help="Environment variable that holds the key.", rich_help_panel=_MODEL)
    ] = None,
    threads: Annotated[int, typer.Option(min=1, help="Calls in flight at once.", rich_help_panel=_MODEL)] = 8,
    reflections: Annotated[int, typer.Option(min=1, help="Reflections of one scan.", rich_help_panel=_SCAN)] = 40,
    copies: Annotated[str, typer.Option(help="Values of p, by comma.", rich_help_panel=_SCAN)] = "1,2,3",
    fan_in: Annotated[str, typer.Option(help="Values of the fan-in, by comma.", rich_help_panel=_SCAN)] = "8,16,32",
    max_calls: Annotated[
        int | None, typer.Option(min=1, help="At most so many calls per scan.", rich_help_panel=_SCAN)
    ] = None,
    merge_fan_in: Annotated[
        int,
        typer.Option(
            min=2,
            help="Most lists in one merge. 32 is parallel-scan's default.",
            rich_help_panel=_SCAN,
        ),
    ] = _MERGE_FAN_IN,
    reflection_tokens: Annotated[
        int, typer.Option(min=1, help="Mean tokens of one reflection.", rich_help_panel=_SCAN)
    ] = 300,
    sizes: Annotated[
        str, typer.Option(help="Items in one probe call, by comma.", rich_help_panel=_PROBE)
    ] = "4,8,16,24,32,48,96",
    calls: Annotated[int, typer.Option(min=1, help="Calls per kind and size.", rich_help_panel=_PROBE)] = 4,
    seed: Annotated[int, typer.Option(min=0, help="Seed of everything random.", rich_help_panel=_PROBE)] = 0,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all figures here.")] = None,
    debug: Debug = False,
) -> None:
    """Which copies and fan-in keep most of what reflections teach."""
    if lm in (None, "embedded") and (api_base or api_key_env):
        option = "--api-base" if api_base else "--api-key-env"
        problem = "says where a model is, but no such model is named"
        raise ArgumentValueError(option, api_base or api_key_env, problem, "Add --lm, such as --lm openai/my-model.")
    if json_file is not None and (json_file.is_dir() or not json_file.absolute().parent.is_dir()):
        raise ArgumentValueError("--json", str(json_file), "cannot be written", "Name a file in a folder that exists.")
    probed, ps, fans = (_numbers(*one) for one in (("--sizes", sizes), ("--copies", copies), ("--fan-in", fan_in)))
    if min(fans) < 2:
        raise ArgumentValueError("--fan-in", fan_in, "holds a number below 2", "A call must merge at least two items.")
    # dspy takes seconds to import, and --help needs none of it.
    from combee_dspy import retention

    with _opened(lm, api_base, api_key_env, threads, (probed, seed)) as predict:
        probe = retention.probe_retention(predict, sizes=probed, calls=calls, seed=seed)
    laws = _fitted(probe, seed)
    tuned = retention.tune_scan(
        laws,
        reflections,
        copies=ps,
        fan_ins=fans,
        max_calls=max_calls,
        merge_fan_in=merge_fan_in,
        reflection_tokens=reflection_tokens,
        seed=seed,
    )
    if json_file is not None:
        _write(json_file, lm, probe, laws, tuned)
    _show(lm, probe, laws, tuned, merge_fan_in)


def _numbers(option: str, text: str) -> tuple[int, ...]:
    try:
        numbers = tuple(sorted({int(part) for part in text.split(",") if part.strip()}))
    except ValueError:
        numbers = ()
    if not numbers or numbers[0] < 1:
        raise ArgumentValueError(option, text, "is no list of numbers from 1", "Give numbers by comma: 8,16,32.")
    return numbers


@contextmanager
def _opened(
    lm: str | None, api_base: str | None, api_key_env: str | None, threads: int, probe: tuple[Sequence[int], int]
) -> Iterator[PredictFn]:
    """Give the way to the model that was named; a service that was started ends with the context."""
    if lm is None:
        from combee_dspy.bench.survival import simulated_predict
        from combee_dspy.lms import CapacityModel
        from combee_dspy.retention import probe_facts

        sizes, seed = probe
        with simulated_predict(probe_facts(sizes, seed), CapacityModel(), seed, threads) as predict:
            yield predict
        return
    from combee_dspy.lms import LMPort
    from combee_dspy.rollouts import Threads

    model, adapter = _model(lm, api_base, api_key_env, threads)
    session = Threads().start(threads)
    try:
        yield LMPort(session, {"proposer": model}, adapter).predict
    finally:
        session.close()


def _model(lm: str, api_base: str | None, api_key_env: str | None, threads: int) -> tuple[Any, Any]:
    import dspy

    if lm == "embedded":
        from combee_dspy.lms import ConstrainedJSONAdapter, embedded_lm

        return embedded_lm(slots=threads), ConstrainedJSONAdapter()
    # A cached answer is no further draw.
    settings: dict[str, Any] = {"cache": False}
    if api_base is not None:
        settings["api_base"] = api_base
    if api_key_env is not None:
        key = os.environ.get(api_key_env)
        if not key:
            remedy = f"Set it, for example: export {api_key_env}=…"
            raise ArgumentValueError("--api-key-env", api_key_env, "names a variable that is not set", remedy)
        settings["api_key"] = key
    return dspy.LM(lm, **settings), None


def _fitted(probe: ProbeResult, seed: int) -> RetentionLaws:
    from combee_dspy.retention import RetentionLaws, fit_retention

    if not probe.reads or not probe.merges:
        last = probe.failed[-1] if probe.failed else "no call of one kind was asked for"
        raise ServiceError(f"{len(probe.failed)} of {probe.calls} probe calls failed, so nothing was measured: {last}")
    return RetentionLaws(fit_retention(probe.reads, seed=seed), fit_retention(probe.merges, seed=seed))


def _show(lm: str | None, probe: ProbeResult, laws: RetentionLaws, tuned: TunedScan, merge_fan_in: int) -> None:
    console = Console()
    console.print(_retention_table(lm or _LABEL, probe, laws))
    if probe.failed:
        # The text comes from a service: no markup of the console's may act in it.
        said = f"{len(probe.failed)} of {probe.calls} calls failed and are no sample, the last with: {probe.failed[-1]}"
        console.print(said[:500], markup=False)
    for name, fit in (("reading", laws.reads), ("merging", laws.merges)):
        if fit.misfit is not None and fit.misfit < 0.01:
            said = f"the law does not fit what was measured (p = {fit.misfit:.1g}): trust the ranking less."
            console.print(f"{name}: {said}")
    console.print(_choice_table(tuned))
    best = tuned.best
    merges = "" if merge_fan_in == _MERGE_FAN_IN else f", merge_fan_in={merge_fan_in}"
    if best is None:
        console.print("No setting respects --max-calls.")
        return
    console.print(
        f"Take copies={best.copies}, fan_in={best.fan_in}{merges}: "
        f"{best.predicted.survival:.1%} of the lessons expected "
        f"({best.predicted.low:.1%} to {best.predicted.high:.1%}), "
        f"{best.calls} calls, about {best.tokens:,} tokens a scan."
    )
    if best.predicted.level_one > best.predicted.survival + _WORTH:
        console.print(
            f"After level 1 {best.predicted.level_one:.1%} are expected to be left: merging loses the rest. "
            "The union aggregator joins without a call."
        )


_WORTH = 0.05


def _retention_table(title: str, probe: ProbeResult, laws: RetentionLaws) -> Table:
    from combee_dspy.retention import pooled_retention

    table = Table(title=f"What one call keeps: {title}")
    for name in ("call", "items m", "copies", "kept", "q(m), 95 % interval", "fitted, 95 % interval"):
        table.add_column(name, justify="left" if name == "call" else "right")
    for kind, samples, fit in (("read", probe.reads, laws.reads), ("merge", probe.merges, laws.merges)):
        for (items, copies), (kept, total, low, high) in pooled_retention(samples).items():
            table.add_row(
                kind,
                str(items),
                str(copies),
                f"{kept}/{total}",
                f"{kept / total:.3f} [{low:.3f}, {high:.3f}]",
                _law_cell(fit, items, copies),
            )
    return table


def _law_cell(fit: RetentionFit, items: int, copies: int) -> str:
    low, high = fit.interval(items, copies)
    return f"{fit.law.q(items, copies):.3f} [{low:.3f}, {high:.3f}]"


def _choice_table(tuned: TunedScan) -> Table:
    table = Table(title=f"Predicted survival of a lesson, {tuned.n} reflections")
    for name in ("p", "fan-in", "calls", "tokens", "survival, 95 % interval", "after level 1", ""):
        table.add_column(name, justify="right")
    for one in tuned.choices:
        mark = "best" if one is tuned.best else "" if one.affordable else "too many calls"
        found = one.predicted
        table.add_row(
            str(one.copies),
            str(one.fan_in),
            "+".join(map(str, one.levels)),
            f"{one.tokens:,}",
            f"{found.survival:.3f} [{found.low:.3f}, {found.high:.3f}]",
            f"{found.level_one:.3f}",
            mark,
        )
    return table


def _write(target: Path, lm: str | None, probe: ProbeResult, laws: RetentionLaws, tuned: TunedScan) -> None:
    from combee_dspy.retention import pooled_retention

    measured = [
        {"call": kind, "items": m, "copies": x, "kept": kept, "total": total, "low": low, "high": high}
        for kind, samples in (("read", probe.reads), ("merge", probe.merges))
        for (m, x), (kept, total, low, high) in pooled_retention(samples).items()
    ]
    record = {
        "model": lm or "simulated",
        "simulated": lm is None,
        "measured": measured,
        "laws": {kind: _law_data(fit) for kind, fit in (("read", laws.reads), ("merge", laws.merges))},
        "failed": len(probe.failed),
        "reflections": tuned.n,
        "choices": [asdict(one) for one in tuned.choices],
        "best": None if tuned.best is None else asdict(tuned.best),
    }
    target.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def _law_data(fit: RetentionFit) -> dict[str, float | int | None]:
    # JSON has no infinity: a limit that was not found is null.
    limits = {name: value if value < float("inf") else None for name, value in asdict(fit.law).items()}
    return {**limits, "largest": fit.largest, "dispersion": fit.dispersion, "misfit": fit.misfit, "calls": fit.calls}
