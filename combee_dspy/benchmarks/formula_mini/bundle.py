"""Writes the bundled rows anew: ``python -m combee_dspy.benchmarks.formula_mini.bundle``."""

from __future__ import annotations

from combee_dspy.benchmarks.formula_mini.generate import Task, bundled_path, bundled_rows, to_jsonl

__all__ = ["main"]

_TASKS: tuple[Task, ...] = ("route", "compute")


def main() -> None:
    """Write one file a task into the package's ``benchmarks/data`` folder."""
    for task in _TASKS:
        bundled_path(task).write_text(to_jsonl(bundled_rows(task)), encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
