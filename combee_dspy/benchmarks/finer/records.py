"""FiNER's records: text to questions and back, and what is wrong with some.

A record asks one to several numbered questions about numbers in sentences of
filings. Its text is FinLoRA's: a list of labels, then
``1. What is best tag for entity "34.6" in sentence: "…?"``, one line each. The
target holds one label a question, joined by commas. Everything here is pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

LABELS: tuple[str, ...] = tuple(
    Path(__file__).with_name("labels.txt").read_text(encoding="utf-8").split()
)
"""The 139 US GAAP tags of FiNER-139 (``nlpaueb/finer-139``), in alphabetical order: every label a
number can have.
"""

_LABELS = re.compile(r"US GAAP tags options:\s*(.*?)\.\s+Answer the following", re.DOTALL)
_QUESTION = re.compile(
    r'(?:^|\n)(\d{1,3})\. (?:What is best tag for )?entity "([^\n]{1,400}?)" in sentence: "'
)
_END = re.compile(r"\n\s*Output US GAAP tags:\s*\Z")


@dataclass(frozen=True, slots=True)
class Question:
    """One number to tag: as its sentence writes it, the sentence (tokens joined by single spaces),
    the right label.
    """

    entity: str
    sentence: str
    target: str

    @property
    def text(self) -> str:
        """The question in one line."""
        return f'entity "{self.entity}" in sentence: "{self.sentence}"'


@dataclass(frozen=True, slots=True)
class Record:
    """A record that was understood: its questions and the labels it offers, none where it lists
    none.
    """

    questions: tuple[Question, ...]
    labels: tuple[str, ...]

    @property
    def text(self) -> str:
        """The numbered questions without the labels, one a line."""
        return "\n".join(
            f"{number}. {question.text}" for number, question in enumerate(self.questions, 1)
        )


def parse(row: Mapping[str, object]) -> Record | str:
    """Read a row ``{"context": str, "target": str}``, or return why it cannot be read.

    The context may be a record's whole text, or its questions as :attr:`Record.text` writes them.
    """
    context, target = row.get("context"), row.get("target")
    if not isinstance(context, str) or not isinstance(target, str) or not target.strip():
        return "context and target are not both text"
    listed = _LABELS.search(context)
    labels = (
        tuple(name for item in listed[1].split(",") if (name := item.strip())) if listed else ()
    )
    text = _END.sub("", context[listed.end() :] if listed else context)
    # A sentence may quote such a line itself: only the next number in turn starts a question.
    marks: list[re.Match[str]] = []
    for mark in _QUESTION.finditer(text):
        if int(mark[1]) == len(marks) + 1:
            marks.append(mark)
    targets = [item.strip() for item in target.split(",")]
    if not marks:
        return (
            'the context holds no numbered question such as: 1. What is best tag for entity "…" in'
            ' sentence: "…?"'
        )
    if len(marks) != len(targets) or not all(targets):
        return f"the context asks {len(marks)} questions and the target holds {len(targets)} labels"
    ends = [*(mark.start() for mark in marks[1:]), len(text)]
    sentences = [
        text[mark.end() : end].strip().removesuffix('"')
        for mark, end in zip(marks, ends, strict=True)
    ]
    questions = (
        Question(mark[2], sentence.removesuffix("?").strip(), tag)
        for mark, sentence, tag in zip(marks, sentences, targets, strict=True)
    )
    return Record(tuple(questions), labels)


def ambiguities(records: Mapping[str, Record]) -> dict[str, str]:
    """Return which questions have two labels in the data, by the key of their record.

    A number that stands twice in a sentence is asked for by the same words
    twice. Where the labels differ, no answer can be right each time.
    """
    tags_by_question: dict[tuple[str, str], set[str]] = {}
    for record in records.values():
        for question in record.questions:
            tags_by_question.setdefault((question.entity, question.sentence), set()).add(
                question.target
            )
    problems: dict[str, list[str]] = {}
    for key, record in records.items():
        for number, question in enumerate(record.questions, 1):
            if len(tags := tags_by_question[question.entity, question.sentence]) > 1:
                both = f"{' and '.join(sorted(tags))} for the same words"
                problems.setdefault(key, []).append(
                    f"question {number} (entity {question.entity}) is labelled {both}"
                )
    return {key: "; ".join(texts) for key, texts in problems.items()}
