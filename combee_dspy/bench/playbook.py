r"""Playbooks on the simulated service: what a batch keeps, and what an epoch costs.

    python -m combee_dspy.bench.playbook kept --path data/formula --json kept.json
    python -m combee_dspy.bench.playbook epoch --path data/formula --examples 240 --miss-rate 0.4 \
        --seeds 0-9 --timed 1 --time-scale 1 --json epoch.jsonl

``kept`` prints bullets and tokens of the playbook after one epoch at batch 1, 10, 40 and 100, for
one curator call over the whole batch (naive ACE) and for Combee's shuffle and shards.

``epoch`` prints seconds and tokens of one epoch of ACE at batch 1, of ACE's own batched mode and of
Combee on ACE at batch 40, plain and with the next batch predicted meanwhile (``staleness=1``), with
the paired held-out difference to batch 1 over seeds and examples. ACE's batched mode is re-created from
the description of its pull request 36: parallel rollouts and reflections, insights duplicated and
shuffled, one curator call for every ``curator_batch_size`` of them; its calls start as soon as what
they read is there, as Combee's do, which is the faster reading. A multiple is printed only where the
method is shown to be no worse: the interval's lower end above -0.05.

At ``--miss-rate 0`` every method learns every lesson of 240 examples, and held-out tells nothing. Above, each
call overlooks that share of the lessons before it, whoever makes it: what is seen seldom may be lost.

Without ``--path`` the rows are those of formula-mini. Everything is simulated: no language model
answers, and what a crowded call loses is a stated law of the service (see
:class:`combee_dspy.lms.CapacityModel`).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from combee_dspy.bench.playbook_runs import BATCHES, METHODS, EpochRow, PlaybookOptions, run_epoch, run_kept
from combee_dspy.bench.playbook_tables import epoch_table, kept_table
from combee_dspy.bench.record import LABEL

__all__ = ["main"]


def _seeds(text: str) -> list[int]:
    first, _, last = text.partition("-")
    return list(range(int(first), int(last or first) + 1))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what the command line asks for and print the table."""
    parser = argparse.ArgumentParser(prog="python -m combee_dspy.bench.playbook", description=__doc__)
    parser.add_argument("figure", choices=("kept", "epoch"))
    parser.add_argument("--path", help="directory with Formula's train, validation and test.jsonl")
    parser.add_argument("--examples", type=int, help="training examples; by default all")
    parser.add_argument("--heldout", type=int, help="held-out examples; by default all")
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument("--miss-rate", type=float, default=0.0, help="share of lessons that a call overlooks")
    parser.add_argument("--batches", default=",".join(map(str, BATCHES)), help="for kept")
    parser.add_argument("--seeds", type=_seeds, default=[0], help="a seed, or first-last; kept takes the first")
    parser.add_argument("--methods", default=",".join(METHODS), help="for epoch; what is missing is read from --json")
    parser.add_argument("--timed", type=int, default=1, help="how many of the seeds are timed")
    parser.add_argument("--time-scale", type=float, default=0.2, help="wall seconds per simulated second")
    parser.add_argument("--json", type=Path, help="where rows are noted; epoch goes on from those of the same options")
    asked = parser.parse_args(arguments)
    options = PlaybookOptions(asked.path, asked.examples, asked.heldout, asked.slots, asked.time_scale, asked.miss_rate)
    if asked.figure == "kept":
        kept = list(run_kept(options, [int(size) for size in asked.batches.split(",")], asked.seeds[0]))
        if asked.json is not None:
            record = {"label": LABEL, "simulated": True, "rows": [asdict(row) for row in kept]}
            asked.json.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
        sys.stdout.write(kept_table(kept) + "\n")
        return
    rows = {(row.method, row.seed): row for row in _noted(asked.json, options)}
    for number, seed in enumerate(asked.seeds):
        timed = number < asked.timed
        known = {name for (name, of), row in rows.items() if of == seed and not (timed and row.seconds is None)}
        missing = [name for name in asked.methods.split(",") if name not in known]
        for row in run_epoch(options, seed, timed=timed, methods=missing):
            rows[row.method, row.seed] = row
            if asked.json is not None:
                _note(asked.json, row, options)
    sys.stdout.write(epoch_table([row for row in rows.values() if row.seed in asked.seeds]) + "\n")


def _note(path: Path, row: EpochRow, options: PlaybookOptions) -> None:
    with path.open("a+b") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            # A line that broke off stays what it is, and apart from this one.
            if file.read(1) != b"\n":
                file.write(b"\n")
        noted = {"simulated": True, "options": asdict(options), **asdict(row)}
        file.write(json.dumps(noted).encode() + b"\n")


def _noted(path: Path | None, options: PlaybookOptions) -> list[EpochRow]:
    if path is None or not path.exists():
        return []
    rows, others = [], 0
    for line in path.read_bytes().splitlines():
        try:
            found = json.loads(line)
            if found.pop("options", None) != asdict(options):
                others += 1
                continue
            found.pop("simulated", None)
            rows.append(EpochRow(**{**found, "scores": tuple(found["scores"])}))
        except (ValueError, KeyError, TypeError, AttributeError):
            # A run that was killed may have left half a line; its row is measured again.
            others += 1
    if others:
        sys.stderr.write(f"{path}: {others} lines are broken or have other options, and are left out.\n")
    return rows


if __name__ == "__main__":
    main()
