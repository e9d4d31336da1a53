"""The formula-mini benchmark: which formula does a question call for, and what does it come to."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import dspy

from combee_dspy.benchmarks._base import BaseBenchmark, Benchmark
from combee_dspy.benchmarks._source import Row, build_splits, check_pins, read_json
from combee_dspy.benchmarks.formula_mini.formulas import BY_NAME, FORMULAS
from combee_dspy.benchmarks.formula_mini.generate import (
    BUNDLED_ROWS,
    BUNDLED_SEED,
    TASK_LEVELS,
    Cell,
    Task,
    bundled_path,
    cell_rows,
    cells,
    to_jsonl,
)
from combee_dspy.benchmarks.numeric import AnswerNumber, exact_metric, tolerant_metric
from combee_dspy.exceptions import ArgumentValueError, DataSourceError
from combee_dspy.streams import derive

__all__ = ["FormulaMini", "route_metric"]

_SPLITS = ("heldout", "validation", "train")
"""The order in which a cell's rows are dealt out: held-out first, so that the other sizes never move it."""

_DEFAULT_SIZES: Mapping[Task, Mapping[str, int]] = {
    "route": {"train": 120, "validation": 48, "heldout": 120},
    "compute": {"train": 168, "validation": 84, "heldout": 168},
}
_DEFAULT_FORMULAS: Mapping[Task, int] = {"route": 12, "compute": len(FORMULAS)}


class FormulaMini(BaseBenchmark):
    """Finance questions made by this package's seeded generator, with exact answers.

    ``task="route"``: ``question`` → ``formula``, one of the names, in two levels.
    Level 1 states the figures at hand and asks in a word of the trade ("gearing");
    level 2 tells a story that avoids the names and their obvious words. The default program is
    ``dspy.Predict``: it is a choice among names, which a small model makes
    better at once than after reasoning of its own.

    ``task="compute"``: ``question`` → ``answer``, a number with two decimals,
    in three levels (see :mod:`combee_dspy.benchmarks.formula_mini.render`).
    Margins, yields, rates and returns are answered in percent (12.5 for
    12.5 %) unless the question wants a decimal fraction. The seed prompt does
    not say so; feedback does. The default program is ``dspy.ChainOfThought``.

    Each split holds every formula (and level) equally often, up to one row.
    Splits share phrasings and no row: held-out measures whether the task was
    learned, not whether the lesson carries over to new wording. With seed 0
    and enough bundled rows these are read; otherwise rows are generated, and
    the benchmark's ``source`` says which.

    Args:
        task: ``"route"`` or ``"compute"``.
        formulas: How many formulas, from the front of a fixed list (2 to 28),
            or their names. ``None``: 12 for route, all for compute.
        train: Rows to learn from. ``None``: 120 for route, 168 for compute.
        validation: Rows to select on. ``None``: 48 for route, 84 for compute.
        heldout: Rows read once at the end. ``None``: as many as the default for ``train``.
        levels: Levels of difficulty. Route: 1 asks in a word of the trade, 2 tells a story
            that takes knowledge of the field. Compute: 1 to 3. ``None``: all of them.
        seed: Seed of the generator.
        pin: Split name to required digest.
    """

    name: ClassVar[str] = "formula-mini"

    def __init__(  # noqa: PLR0913 - flat, so that each fits one line of a YAML file
        self,
        task: Task = "route",
        *,
        formulas: int | Sequence[str] | None = None,
        train: int | None = None,
        validation: int | None = None,
        heldout: int | None = None,
        levels: Sequence[int] | None = None,
        seed: int = 0,
        pin: Mapping[str, str] | None = None,
    ) -> None:
        self.task = task
        self.formulas = formulas
        self.train = train
        self.validation = validation
        self.heldout = heldout
        self.levels = levels
        self.seed = seed
        self.pin = pin

    def load(self) -> Benchmark:
        """Read or generate the rows and return the benchmark.

        Raises:
            ArgumentValueError: A parameter cannot be used.
            DataSourceError: ``datasets`` is missing, or the rows differ from ``pin``.
        """
        names = self._names()
        every = cells(self.task, names, self._levels())
        quotas = {split: self._quota(split, every) for split in _SPLITS}
        rows, source = self._rows(every, {cell: sum(quota[cell] for quota in quotas.values()) for cell in every})
        splits, notes = build_splits(self._deal(every, quotas, rows), self._example)
        check_pins(self.name, source, splits, self.pin)
        signature = _route_signature(names) if self.task == "route" else AnswerNumber
        module = dspy.Predict if self.task == "route" else dspy.ChainOfThought
        return Benchmark(
            name=self.name,
            task=f"{self.task}, {len(names)} formulas",
            source=source,
            licence="MIT (this package)",
            citation="formula-mini, generated by combee_dspy",
            train=splits["train"],
            validation=splits["validation"],
            heldout=splits["heldout"],
            signature=signature,
            program=lambda: module(signature),
            metric=route_metric if self.task == "route" else exact_metric,
            tolerant_metric=None if self.task == "route" else tolerant_metric,
            notes=notes,
        )

    def _names(self) -> tuple[str, ...]:
        if self.task not in _DEFAULT_SIZES:
            raise ArgumentValueError("task", self.task, "is no task of formula-mini", "Use 'route' or 'compute'.")
        wanted = _DEFAULT_FORMULAS[self.task] if self.formulas is None else self.formulas
        known = tuple(formula.name for formula in FORMULAS)
        if isinstance(wanted, int) and not isinstance(wanted, bool):
            if not 2 <= wanted <= len(known):
                raise ArgumentValueError("formulas", wanted, "is out of range", f"Use 2 to {len(known)}.")
            return known[:wanted]
        names = () if isinstance(wanted, (str, bool)) else tuple(wanted)
        if len(names) < 2 or len(set(names)) < len(names) or not set(names) <= set(known):
            remedy = f"Give a number, or two or more different names of: {', '.join(known)}."
            raise ArgumentValueError("formulas", wanted, "cannot be used", remedy)
        return names

    def _levels(self) -> tuple[int, ...]:
        known = TASK_LEVELS[self.task]
        levels = known if self.levels is None else tuple(self.levels)
        if not levels or len(set(levels)) < len(levels) or not set(levels) <= set(known):
            remedy = f"Give different levels of {', '.join(map(str, known))}."
            raise ArgumentValueError("levels", self.levels, "cannot be used", remedy)
        return levels

    def _quota(self, split: str, every: Sequence[Cell]) -> dict[Cell, int]:
        given = getattr(self, split)
        size = _DEFAULT_SIZES[self.task][split] if given is None else given
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise ArgumentValueError(split, size, "is no number of rows", "Give a whole number of at least 1.")
        base, rest = divmod(size, len(every))
        order = list(every)
        derive(self.seed, "formula-mini", self.task, split, "remainder").shuffle(order)
        return {cell: base + (cell in order[:rest]) for cell in every}

    def _rows(self, every: Sequence[Cell], need: Mapping[Cell, int]) -> tuple[dict[Cell, list[Row]], str]:
        most = max(need.values())
        if self.seed == BUNDLED_SEED and most <= BUNDLED_ROWS[self.task]:
            path = bundled_path(self.task)
            found = _by_cell(read_json(self.name, str(path)))
            if any(len(found.get(cell, ())) < need[cell] for cell in every):
                remedy = "The installation is damaged: install combee-dspy again."
                raise DataSourceError(self.name, str(path), "the bundled rows are incomplete", remedy)
            return found, f"bundled with combee_dspy ({path.name}), generated with seed {self.seed}"
        rows = [row for cell in every for row in cell_rows(self.task, self.seed, cell, need[cell])]
        with tempfile.TemporaryDirectory(prefix="combee-rows-") as folder:
            path = Path(folder, "rows.jsonl")
            path.write_text(to_jsonl(rows), encoding="utf-8", newline="\n")
            return _by_cell(read_json(self.name, str(path))), f"generated by combee_dspy with seed {self.seed}"

    def _deal(
        self, every: Sequence[Cell], quotas: Mapping[str, Mapping[Cell, int]], rows: Mapping[Cell, Sequence[Row]]
    ) -> dict[str, list[Row]]:
        dealt: dict[str, list[Row]] = {}
        start = dict.fromkeys(every, 0)
        for split in _SPLITS:
            chosen = [row for cell in every for row in rows[cell][start[cell] : start[cell] + quotas[split][cell]]]
            derive(self.seed, "formula-mini", self.task, split, "order").shuffle(chosen)
            start = {cell: start[cell] + quotas[split][cell] for cell in every}
            dealt[split] = chosen
        return dealt

    def _example(self, row: Row) -> dspy.Example:
        if self.task == "route":
            return dspy.Example(question=row["question"], formula=row["formula"]).with_inputs("question")
        # Formula and level are no fields of the signature: they tell groups of examples apart in an analysis.
        labels = {"answer": row["answer"], "formula": row["formula"], "level": row["level"]}
        return dspy.Example(question=row["question"], **labels).with_inputs("question")


def _by_cell(rows: Sequence[Row]) -> dict[Cell, list[Row]]:
    found: dict[Cell, list[Row]] = {}
    for row in rows:
        found.setdefault((row["formula"], row["level"]), []).append(row)
    return found


def _route_signature(names: tuple[str, ...]) -> type[dspy.Signature]:
    fields = {"question": (str, dspy.InputField()), "formula": (Literal[names], dspy.OutputField())}
    return dspy.Signature(fields, "Name the finance formula that the question calls for.")


def route_metric(
    gold: dspy.Example,
    pred: dspy.Prediction,
    trace: Any = None,
    pred_name: str | None = None,
    pred_trace: Any = None,
) -> dspy.Prediction:
    """Score 1.0 where the formula is the right one, else 0.0, and say what tells the two apart.

    Pure and safe to call from any thread.
    """
    right = BY_NAME[gold.formula]
    given = str(getattr(pred, "formula", None) or "").strip()
    if given == right.name:
        return dspy.Prediction(score=1.0, feedback=f"Correct: it asks for {right.tell}, which is {right.name}.")
    other = BY_NAME.get(given)
    asked = f"The question asks for {right.tell}: {right.name}"
    if other is None:
        shown = repr(given[:60]) if given else "nothing"
        return dspy.Prediction(score=0.0, feedback=f"Wrong: got {shown}, which names no formula. {asked}.")
    feedback = f"Wrong: got {other.name}. {asked}, not {other.name}, which is {other.tell}."
    return dspy.Prediction(score=0.0, feedback=feedback)
