"""A comparison whose method hangs in the metric: run as a program of its own, which is then
interrupted.
"""

from __future__ import annotations

import dataclasses
import sys
import threading
from typing import Any

from combee_bench import compare
from combee_bench.options import CompareOptions


def main() -> None:
    """Compare; once the method hangs, say so."""

    def hang(*given: Any, **named: Any) -> float:
        print("hanging", file=sys.__stdout__, flush=True)
        threading.Event().wait()
        return 0.0

    load = compare.load_rows
    compare.load_rows = lambda *given, **sizes: dataclasses.replace(
        load(*given, **sizes), metric=hang
    )
    compare.scores_of = lambda program, rows, endpoint, threads: (0.0,) * 6
    options = CompareOptions(
        methods=("gepa",), budget=40, seeds=(0,), train=6, validation=6, heldout=6, time_scale=0.001
    )
    list(compare.run(options))


if __name__ == "__main__":
    main()
