"""Scoring of FiNER's answers, official and tolerant, with feedback per tag.

The official score is ACE's: positions count, case does not; surplus answers
are cut off and missing ones are wrong. The score of a record is the share of
its tags that are right, so that the mean over records of equal length is the
accuracy per tag; ``unit="record"`` asks for all of them. The tolerant score
forgives how tags are written (numbering, quotes, brackets, ``us-gaap:``, spaces
between the words, a line each), never their order. Pure, and safe to call from
any thread.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Literal

import dspy

from combee_dspy.benchmarks.finer.records import LABELS

_READ = 20_000
_SHOWN = 160
_NUMBERED = re.compile(r"^\s*(?:\(?\d{1,3}\s*[.):]\s*)?")
_PREFIX = re.compile(r"^(?:us[-_ ]?gaap)\s*[:_/-]\s*", re.IGNORECASE)
_QUOTES = " \t\r\n\"'`*[](){}<>.;"
_INNER = re.compile(r"[\s_-]+")


@dataclass(frozen=True, slots=True)
class TagResult:
    """What is right and wrong with one tag: whether it is a known label, right by the official
    score, right at all.

    ``entity`` is the number that was asked for, ``got`` the answer as it was written (``None``:
    nothing was).
    """

    entity: str
    expected: str
    got: str | None
    is_label: bool
    exact: bool
    tolerant: bool


def grade(
    prediction: object,
    expected: Sequence[str],
    entities: Sequence[str] = (),
    labels: Sequence[str] = LABELS,
) -> list[TagResult]:
    """Compare predicted tags, joined by commas or in a list, with the right ones, position by
    position.

    Entities are the numbers asked for, in the same order; missing ones are named by position.
    """
    official = [tag or None for tag in _tags(prediction)]
    loose = [tag for item in _tags(prediction, r",\n;") if (tag := _plain(item))]
    valid = {label.casefold() for label in labels}
    results = []
    for place, (right, got, easy) in enumerate(
        zip_longest(expected, official[: len(expected)], loose[: len(expected)])
    ):
        exact = got is not None and got.lower() == right.lower()
        entity = entities[place] if place < len(entities) else f"#{place + 1}"
        is_label = got is not None and got.casefold() in valid
        results.append(
            TagResult(entity, right, got, is_label, exact, exact or easy == _plain(right))
        )
    return results


def _tags(prediction: object, separators: str = ",") -> list[str]:
    if isinstance(prediction, (list, tuple)):
        prediction = ",".join(str(item) for item in prediction[:_SHOWN])
    text = "" if prediction is None else str(prediction)[:_READ].strip()
    return [item.strip() for item in re.split(f"[{separators}]", text)] if text else []


def _plain(tag: str) -> str:
    bare = _NUMBERED.sub("", tag.strip(_QUOTES)).strip(_QUOTES)
    return _INNER.sub("", _PREFIX.sub("", bare)).casefold()


@dataclass(frozen=True)
class TagMetric:
    """FiNER's metric, in GEPA's protocol: reads ``gold.tags`` (joined by commas), ``gold.entities``
    and ``pred.tags``.

    Attributes:
        unit: ``"tag"`` scores the share of right tags; ``"record"`` 1.0 where all are right, else
            0.0.
        tolerant: Forgive how tags are written.
        labels: Every label there is.
    """

    unit: Literal["tag", "record"] = "tag"
    tolerant: bool = False
    labels: tuple[str, ...] = LABELS

    def __call__(
        self,
        gold: Any,
        pred: Any,
        trace: Any = None,
        pred_name: str | None = None,
        pred_trace: Any = None,
    ) -> dspy.Prediction:
        """Score a prediction."""
        expected = [tag.strip() for tag in str(gold.tags).split(",")]
        prediction = getattr(pred, "tags", None)
        results = grade(prediction, expected, list(gold.get("entities") or ()), self.labels)
        right = [item.tolerant if self.tolerant else item.exact for item in results]
        score = sum(right) / len(right) if self.unit == "tag" else float(all(right))
        return dspy.Prediction(score=score, feedback=self._feedback(results, right, prediction))

    def _feedback(
        self, results: Sequence[TagResult], right: Sequence[bool], prediction: object
    ) -> str:
        lines = [f"{sum(right)} of {len(right)} tags are right."]
        for number, (item, ok) in enumerate(zip(results, right, strict=True), 1):
            lines.append(f'{number}. entity "{_short(item.entity)}": {self._judgement(item, ok)}')
        if (surplus := len(_tags(prediction)) - len(results)) > 0:
            lines.append(
                f"{surplus} answers too many were ignored: give {len(results)}, separated by"
                " commas."
            )
        return "\n".join(lines)

    def _judgement(self, item: TagResult, ok: bool) -> str:
        if ok:
            return f"right, {item.expected}."
        if item.got is None:
            return f"no answer; expected {item.expected}."
        if item.is_label:
            return f"predicted {_short(item.got)}; expected {item.expected}."
        kind = f"which is none of the {len(self.labels)} labels"
        if item.tolerant:
            kind += " as it is written: give the label alone, exactly as listed"
        return f"predicted {_short(item.got)}, {kind}; expected {item.expected}."


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN else line[: _SHOWN - 1] + "…"
