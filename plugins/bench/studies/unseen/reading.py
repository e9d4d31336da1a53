"""The scripted reflection model: reads examples with feedback, writes lines with misses."""

from __future__ import annotations

import json
import random
import re
from dataclasses import dataclass

from studies.unseen.service import output_names, write_fields
from studies.unseen.wording import answer_with, platitude, word_lesson
from studies.unseen.world import Task, words_in

__all__ = ["Reader"]

_ATTENDS = 12
"""The most examples that one call takes in."""


@dataclass(frozen=True, slots=True)
class _Record:
    number: int
    inputs: str
    outputs: str
    feedback: str


class Reader:
    """Answers what proposers and readers of lessons ask, whatever the form.

    ``loses`` is how often a line is lost where it writes a whole instruction, ``settles`` how often
    a line leaves that a new one contradicts.
    """

    def __init__(self, task: Task, seed: int, loses: float = 0.03, settles: float = 0.0) -> None:
        self.task, self.seed = task, seed
        self.loses, self.settles = loses, settles

    def __call__(self, system: str, user: str, times: int) -> str:
        """Answer a request, each time in other words."""
        plain = re.sub(r"data-[0-9a-f]{8,}", "data", user)
        source = random.Random(f"{self.seed} {times} {plain}")  # noqa: S311 - a seed
        names = output_names(system)
        if "same" in names:
            return self._relate(system, user, source)
        current = _section(user, "current_instruction")
        records = _records(user)
        lessons = self._learn(records, source, current)
        if names == ["lessons"]:
            cites = "square brackets" in system or '"[2, 5]' in system
            lines = [self._cite(line, numbers, records, source, cites) for line, numbers in lessons]
            return answer_with(system, source, "lessons", lines)
        if len(names) == 1:
            return answer_with(system, source, names[0], self._rewrite(current, lessons, source))
        return write_fields(system, dict.fromkeys(names, "No idea."))

    def _rewrite(
        self, current: str, lessons: list[tuple[str, list[int]]], source: random.Random
    ) -> str:
        lines = current.split("\n")
        stays = [line for line in lines if not line.strip() or source.random() > self.loses]
        new = [line for line, _ in lessons]
        if self.settles:
            stays = [
                line
                for line in stays
                if not any(self._oppose(line, other) for other in new)
                or source.random() > self.settles
            ]
        return "\n".join([*stays, *(f"- {line}" for line in new)])

    def _meaning(self, text: str) -> tuple[frozenset[str], frozenset[str]]:
        """Return the words that a line is about, and the values that it asks for."""
        cues = words_in(text, [*self.task.cues(), *self.task.fillers])
        return frozenset(cues), frozenset(words_in(text, self.task.values()))

    def _oppose(self, line: str, other: str) -> bool:
        (cues, values), (more, others) = self._meaning(line), self._meaning(other)
        if self.task.joins or not values or not others or values == others:
            return False
        same_field = self.task.field_of(min(values)) == self.task.field_of(min(others))
        return bool(cues) and cues == more and same_field

    def _cite(
        self,
        line: str,
        numbers: list[int],
        records: list[_Record],
        source: random.Random,
        cites: bool,
    ) -> str:
        luck = source.random()
        if not cites or luck < 0.1:
            return line
        if luck < 0.15:
            numbers = [source.choice(records).number]
        return f"[{', '.join(map(str, numbers))}] {line}"

    def _learn(
        self, records: list[_Record], source: random.Random, current: str
    ) -> list[tuple[str, list[int]]]:
        """Return lines, each with the examples that it comes from."""
        task = self.task
        read = records if len(records) <= _ATTENDS else source.sample(records, _ATTENDS)
        taught: dict[tuple[tuple[str, ...], str], list[int]] = {}
        for record in read:
            for cues, value in self._blame(record, read, source):
                taught.setdefault((cues, value), []).append(record.number)
        lessons = [
            (word_lesson(task, source, cues, task.field_of(value), value), numbers)
            for (cues, value), numbers in taught.items()
        ]
        if records and source.random() < task.invents:
            value = source.choice(task.values())
            line = word_lesson(
                task, source, [source.choice(task.cues())], task.field_of(value), value
            )
            lessons.append((line, [source.choice(records).number]))
        if source.random() < 0.2 or not lessons:
            lessons.append((platitude(task, source), [record.number for record in read[:2]]))
        return lessons

    def _blame(
        self, record: _Record, others: list[_Record], source: random.Random
    ) -> list[tuple[tuple[str, ...], str]]:
        """Return what a record teaches: cues, and the value that they ask for."""
        task = self.task
        if record.feedback.startswith("Right") or source.random() > task.notices:
            return []
        every = sorted({rule.field for rule in task.rules})
        # Answers may be left out of a record.
        fields = [field for field in every if field in record.outputs] or every
        # Only what stands behind "expected" was wanted.
        wanted = record.feedback.partition("xpected")[2] or record.feedback.partition("正解")[2]
        values = [value for value in words_in(wanted, task.values()) if value in self._of(fields)]
        present = words_in(record.inputs, task.cues())
        if not values and "xpected" not in record.feedback and "正解" not in record.feedback:
            values = self._guess(record, others, fields, source)
        learned = []
        for value in values:
            named = words_in(record.feedback, present)
            fillers = words_in(record.inputs, task.fillers)
            if named and source.random() < 0.95:
                cues = tuple(named[:2])
            elif fillers and (source.random() < task.misreads or not present):
                cues = (source.choice(fillers),)
            elif present:
                several = len(present) > 1 and source.random() < 0.6
                cues = tuple(present[:2]) if several else (source.choice(present),)
            else:
                continue
            learned.append((cues, value))
        return learned

    def _of(self, fields: list[str]) -> set[str]:
        return {value for field in fields for value in self.task.values(field)}

    def _guess(
        self, record: _Record, others: list[_Record], fields: list[str], source: random.Random
    ) -> list[str]:
        """Return what may be right where the feedback is a score alone."""
        score = re.search(r"-?\d+(?:\.\d+)?", record.feedback)
        if not fields or (score and float(score.group()) >= 1):
            return []
        values = self.task.values(fields[0])
        tried = words_in(record.outputs, values)
        cues = set(words_in(record.inputs, self.task.cues()))
        for other in others:
            good = re.search(r"\b1(?:\.0)?\b", other.feedback)
            if good and cues & set(words_in(other.inputs, self.task.cues())):
                return words_in(other.outputs, values)[:1]
        rest = [value for value in values if value not in tried]
        return [source.choice(rest)] if rest and source.random() < 0.6 else []

    def _relate(self, system: str, user: str, source: random.Random) -> str:  # noqa: C901
        """Say which numbered lessons say the same, contradict each other, narrow or say nothing."""
        task = self.task
        section = _section(user, "lessons")
        read = {number: self._meaning(text) for number, text in _numbered(section)}
        same: dict[object, list[int]] = {}
        for number, meaning in read.items():
            if meaning[0] and meaning[1]:
                same.setdefault(meaning, []).append(number)
        groups = [group for group in same.values() if len(group) > 1 and source.random() < 0.85]
        rivals, narrower = [], []
        for number, (cues, values) in read.items():
            for second, (more, others) in read.items():
                if not cues or not more or values == others or not values or not others:
                    continue
                if task.joins or task.field_of(min(values)) != task.field_of(min(others)):
                    continue
                if cues == more and number < second and source.random() < 0.8:
                    rivals.append([number, second])
                if cues < more and source.random() < 0.8:
                    narrower.append([second, number])
        empty = [n for n, (cues, values) in read.items() if not values and source.random() < 0.8]
        if len(read) > 1 and source.random() < 0.05:
            groups.append(source.sample(sorted(read), 2))
        fields = {
            "same": groups,
            "contradictory": rivals,
            "narrower": narrower,
            "empty": empty,
        }
        luck = source.random()
        if luck < 0.03:
            return "I'm sorry, but I can't help with that request."
        text = write_fields(system, fields)
        if luck < 0.08:
            return f"<think>\n1 and 2 look alike.\n</think>\n{text}"
        return text[: len(text) // 2] if luck < 0.1 else text


def _section(user: str, name: str) -> str:
    """Return what stands in a field of a user message."""
    match = re.search(
        rf"(?:\[\[ ## {name} ## \]\]|<{name}>)\s*(.*?)\s*"
        rf"(?=\n\[\[ ## \w+ ## \]\]|\n</{name}>|\nRespond with|\Z)",
        user,
        re.DOTALL,
    )
    text = match.group(1) if match else ""
    return re.sub(r"^<data-[0-9a-f]+>\s*|\s*</data-[0-9a-f]+>$", "", text)


def _records(user: str) -> list[_Record]:
    section = _section(user, "examples_with_feedback")
    try:
        items = json.loads(section)
    except json.JSONDecodeError:
        items = []
    return [
        _Record(
            item.get("Example", number),
            json.dumps(item.get("Inputs"), ensure_ascii=False),
            json.dumps(item.get("Generated Outputs"), ensure_ascii=False),
            str(item.get("Feedback", "")),
        )
        for number, item in enumerate(items, start=1)
    ]


def _numbered(section: str) -> list[tuple[int, str]]:
    try:
        items = json.loads(section)
    except json.JSONDecodeError:
        items = [line for line in section.split("\n") if line.strip()]
    numbers = [(re.search(r"\d+", str(item)), str(item)) for item in items]
    return [(int(number.group()), text) for number, text in numbers if number]
