"""What a run learned: the lines of its text, and the candidate that each of them came from.
Pure.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from combee_dspy.records import is_hidden
from combee_dspy.tracking._candidates import CandidateRow, gains_of, lineage_of


@dataclass(frozen=True, slots=True)
class LearnedLine:
    """One line of a learned text.

    Attributes:
        part: The component.
        text: The line.
        step: The update that brought it; −1 for a line of the student.
        operator: What wrote it.
        gain: What validation gained by all lines of that update together; ``None`` where that is
            not known, and for a heading.
        heading: Whether it is a heading.
        fate: What became of its candidate on the screen, where that was not validated.
    """

    part: str
    text: str
    step: int
    operator: str
    gain: float | None
    heading: bool
    fate: str


def learned_lines(chosen: CandidateRow, candidates: Sequence[CandidateRow]) -> list[LearnedLine]:
    """Return each line of a candidate's texts with the update and operator that brought it.

    Args:
        chosen: The candidate.
        candidates: All of its run, parents before children.
    """
    lineage, gains = lineage_of(chosen, candidates), gains_of(candidates)
    lines: list[LearnedLine] = []
    for part, text in chosen.texts.items():
        sources: dict[str, CandidateRow] = {}
        for candidate in lineage:
            for line in lines_of(part, candidate.texts.get(part, "")):
                sources.setdefault(_lasting(line), candidate)
        for line in filter(str.strip, lines_of(part, text)):
            source = sources[_lasting(line)]
            heading = line.startswith("#") or line.endswith(":")
            screened = source.screened
            lines.append(
                LearnedLine(
                    part=part,
                    text=line,
                    # Of the student, whatever it came from.
                    step=source.step if source.parents else -1,
                    operator=source.operator,
                    gain=None if heading else gains.get(source.candidate),
                    heading=heading,
                    fate=screened.reason if screened and source.score is None else "",
                )
            )
    return lines


def compare_texts(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the lines of a comparison by part, after ``"+ "``, ``"- "`` or two spaces.

    Parts that do not differ are left out.
    """
    changes = {}
    for part, text in after.items():
        old, new = lines_of(part, before.get(part, "")), lines_of(part, text)
        if old != new:
            changes[part] = [line for line in difflib.ndiff(old, new) if line[0] != "?"]
    return changes


def lines_of(part: str, text: str) -> list[str]:
    """Return a text's lines. What is kept as JSON beside an instruction has one line an item.

    What is no such JSON is a text like any other.
    """
    if not is_hidden(part):
        return text.splitlines()
    try:
        data = json.loads(text) if text else {}
        if "fields" in data:
            return [f"{name}: {description}" for name, description in data["fields"].items()]
        return [
            f"{_joined(demonstration['inputs'])} ⇒ {_joined(demonstration['outputs'])}"
            for demonstration in data.get("demonstrations", ())
        ]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return text.splitlines()


def _joined(values: Mapping[str, object]) -> str:
    return "; ".join(f"{name}: {value}" for name, value in values.items())


def _lasting(line: str) -> str:
    """Return the part of a line that stays: a bullet of a playbook without its counters."""
    head, separator, text = line.partition(" :: ")
    return text if separator and head.startswith("[") else line
