"""Any data set of the Hugging Face hub as a benchmark: columns to fields, splits to splits, an
answer to a score.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import chain
from typing import Any, ClassVar, Literal

import dspy
from pydantic import Field

from combee_dspy.benchmarks._base import SPLITS, Card, LoadedBenchmark, Row
from combee_dspy.benchmarks._records import RecordBenchmark
from combee_dspy.benchmarks._source import RowSource
from combee_dspy.benchmarks.numeric import exact_metric, plain_number, tolerant_metric
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.strategies import parameters

_LONGEST = 200
"""Characters of an answer that feedback repeats."""
_TAKEN = frozenset({"base", "config", "demos", "lm", "new_signature", "self", "signature"})
"""What DSPy's examples and predictors take for something else than a field."""

_CARD = Card(
    task="Any data set of the Hugging Face hub: one or several inputs, one answer.",
    licence="the data set's own: see its page",
    citation="the data set's own: see its page",
    size="the data set's own; train=, validation= and heldout= take slices",
    sources=(
        "hub owner/name (with revision=, its 40-digit commit)",
        "path DIR (a local copy in the hub's layout)",
    ),
    scoring=(
        "compare='text': equal but for case, articles and punctuation, F1 of words beside it;"
        " 'number': as Formula"
    ),
)


@parameters
class Hub(RecordBenchmark):
    """A data set of the hub by id, commit, splits and columns.

    ``datasets`` reads it, with its caches: what was read once is read again without a network, and
    ``HF_HUB_OFFLINE=1`` never asks for one. No code of the data set runs.

    Attributes:
        path: The hub id ``owner/name``, or a local folder in the hub's layout.
        subset: The configuration, of a data set that has several.
        splits: Our splits to the data set's: any expression of ``datasets.load_dataset``, such as
            ``"train[:90%]"``. Without labels in its test split, hold a part of another one out.
        fields: The program's input fields to columns. Lists and objects are given as JSON.
        label: The column of the right answer.
        pattern: A regular expression whose first group is the answer within that column. ``None``:
            all of it.
        answer: The program's output field. With ``compare="number"`` it is ``answer``.
        compare: ``"text"``: right where equal but for case, articles and punctuation (as in SQuAD
            and HotpotQA), and but for case alone among ``choices`` and where nothing else is left,
            as of the answer A; ``"number"``: right where equal as floats.
        choices: Whether the answers of all rows are the only ones that may be given.
        instructions: The seed prompt. ``None``: DSPy's own for the fields.
        reasoning: Whether the default program is ``dspy.ChainOfThought`` or ``dspy.Predict``.
    """

    name: ClassVar[str] = "hub"
    card: ClassVar[Card | None] = _CARD
    rows: ClassVar[RowSource] = RowSource(
        "hub",
        hub=True,
        remedy="Give path= a hub id with revision=, or a local folder in the hub's layout.",
    )

    subset: str | None = None
    splits: Mapping[str, str] = Field(
        default_factory=lambda: {"train": "train", "validation": "validation", "heldout": "test"}
    )
    fields: Mapping[str, str] = Field(default_factory=lambda: {"question": "question"})
    label: str = "answer"
    pattern: str | None = None
    answer: str = "answer"
    compare: Literal["text", "number"] = "text"
    choices: bool = False
    instructions: str | None = None
    reasoning: bool = True

    def __post_init__(self) -> None:
        if set(self.splits) != set(SPLITS):
            remedy = f"Name {', '.join(SPLITS)}."
            raise ArgumentValueError(
                "Hub.splits", dict(self.splits), "are others than ours", remedy
            )
        if not self.fields or not all(map(str.isidentifier, self.fields)):
            remedy = "Give one or more identifiers with their columns."
            raise ArgumentValueError(
                "Hub.fields", dict(self.fields), "cannot be fields of a program", remedy
            )
        taken = _TAKEN | {"reasoning"} if self.reasoning else _TAKEN
        if lost := sorted(taken & {*self.fields, self.answer}):
            place = "Hub.answer" if lost[0] == self.answer else "Hub.fields"
            remedy = "Give the field another name; its column keeps its own."
            raise ArgumentValueError(place, lost[0], "is a name that DSPy takes for itself", remedy)
        if not self.answer.isidentifier() or self.answer in self.fields:
            remedy = "Give an identifier that is no input field."
            raise ArgumentValueError(
                "Hub.answer", self.answer, "cannot be the output field", remedy
            )
        if self.compare == "number" and self.answer != "answer":
            raise ArgumentValueError(
                "Hub.answer", self.answer, "is no number's field", "Leave it out."
            )
        if self.compare == "number" and self.choices:
            remedy = "Leave it out, or compare as text."
            raise ArgumentValueError("Hub.choices", True, "does not go with numbers", remedy)
        if self.pattern is not None:
            _check_pattern(self.pattern)

    @property
    def source(self) -> RowSource:
        """Where the rows are."""
        return replace(super().source, names=dict(self.splits), subset=self.subset)

    def load(self) -> LoadedBenchmark:
        """Read the rows and return the benchmark (see :meth:`RecordBenchmark.read`)."""
        reading = self.read()
        signature = self._signature(chain.from_iterable(reading.rows.values()))
        module = dspy.ChainOfThought if self.reasoning else dspy.Predict
        numbers = self.compare == "number"
        return LoadedBenchmark(
            name=self.name,
            task=f"{self.path}{f', {self.subset}' if self.subset else ''}",
            source=reading.source,
            licence=_CARD.licence,
            citation=_CARD.citation,
            train=reading.splits["train"],
            validation=reading.splits["validation"],
            heldout=reading.splits["heldout"],
            signature=signature,
            program=lambda: module(signature),
            metric=exact_metric if numbers else self._text_metric(tolerant=False),
            tolerant_metric=tolerant_metric if numbers else self._text_metric(tolerant=True),
            notes=reading.notes,
        )

    def problem(self, row: Row) -> str | None:
        """Return why a row cannot be used, or ``None``."""
        if missing := sorted({*self.fields.values(), self.label} - row.keys()):
            return (
                f"it has no column {missing[0]!r}, but"
                f" {', '.join(sorted(map(str, row)))[:_LONGEST]}"
            )
        for column in self.fields.values():
            try:
                if not _text(row[column]).strip():
                    return f"the column {column!r} is empty"
            except (TypeError, ValueError, RecursionError) as error:
                return f"the column {column!r} is no text, number, list or object of them: {error}"
        answer = self._answer(row)
        if not answer:
            return f"the column {self.label!r} holds no answer, or none that pattern finds"
        if self.compare == "number" and (
            (value := plain_number(answer)) is None or not math.isfinite(value)
        ):
            return f"the answer {answer[:80]!r} is not a finite number"
        return None

    def to_example(self, row: Mapping[str, object]) -> dspy.Example:
        """Return the inputs under the program's names, as text, and the answer."""
        inputs = {name: _text(row[column]) for name, column in self.fields.items()}
        return dspy.Example(**inputs, **{self.answer: self._answer(row)}).with_inputs(*inputs)

    def _answer(self, row: Mapping[str, object]) -> str | None:
        value = row[self.label]
        if not isinstance(value, (str, int, float)):
            return None
        if self.pattern is None:
            return str(value).strip()
        match = re.search(self.pattern, str(value))
        return (match[1] or "").strip() if match else None

    def _text_metric(self, *, tolerant: bool) -> Callable[..., dspy.Prediction]:
        from dspy.evaluate.metrics import EM, F1, normalize_text

        field, choices = self.answer, self.choices

        def metric(
            gold: Any, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None
        ) -> dspy.Prediction:
            """Score an answer against the right one, with feedback. Pure."""
            right, value = str(gold[field]), getattr(pred, field, None)
            answer = "" if value is None else str(value)
            is_right = answer.strip().casefold() == right.strip().casefold()
            score = float(is_right)
            # Without articles and marks nothing is left of some answers, such as A: then no answer
            # at all would be as good.
            if not is_right and not choices and normalize_text(right):
                is_right = bool(EM(answer, [right]))
                score = float(is_right or (tolerant and F1(answer, [right])))
            feedback = "Correct."
            if not is_right:
                feedback = f"Wrong: got {_short(answer)}; the answer is {_short(right)}."
            return dspy.Prediction(score=score, feedback=feedback)

        return metric

    def _signature(self, rows: Iterable[Row]) -> type[dspy.Signature]:
        kind: Any = str
        if self.choices:
            kind = Literal[tuple(sorted({self._answer(row) for row in rows}, key=str))]
        number = "a plain decimal number, in full digits, without units or other text"
        output = dspy.OutputField(desc=number) if self.compare == "number" else dspy.OutputField()
        fields: dict[str, Any] = {name: (str, dspy.InputField()) for name in self.fields}
        return dspy.Signature(
            {**fields, self.answer: (kind, output)}, *filter(None, [self.instructions])
        )


def _check_pattern(pattern: str) -> None:
    remedy = r"Give a regular expression with a group for the answer, such as '#### (.+)'."
    try:
        groups = re.compile(pattern).groups
    except re.error as error:
        problem = f"is no regular expression: {error}"
        raise ArgumentValueError("Hub.pattern", pattern, problem, remedy) from error
    if not groups:
        raise ArgumentValueError("Hub.pattern", pattern, "has no group", remedy)


def _text(value: object) -> str:
    return (
        value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, allow_nan=False)
    )


def _short(text: str) -> str:
    return repr(text if len(text) <= _LONGEST else text[:_LONGEST] + "…")
