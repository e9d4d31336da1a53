"""Which file holds which lessons: ``SKILL.md``, and references by topic, as texts. Pure."""

from __future__ import annotations

import random
import re
import sys
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import groupby

import yaml

from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.lessons import Book, BookLesson, deal_alike, encode_book
from combee_dspy.reflections import estimate_tokens
from combee_dspy.skills._lines import evidence_of, line_of
from combee_dspy.texts import normalised

PAGE, BOOK = "SKILL.md", "references/lessons.json"
LESSONS, REFERENCES = "## Lessons", "## More lessons"
_HOW = "Open the file whose words are in your task."
# Tokens for the line that says how many files a list leaves out, and for the title of a reference.
_ROOM, _TITLE = 20, 150
_LONGEST_DESCRIPTION = 1024
_LESSONS_OF_TOPIC = 40
_WORD = re.compile(r"[^\W\d]\w{3,30}")


def pages_of(
    name: str,
    description: str,
    task: str,
    book: Book,
    first: Collection[str],
    max_tokens: int,
) -> dict[str, str]:
    """Return the files of a skill by their path in its folder, none above ``max_tokens``.

    Lessons of the user's own come first, then those that are named, then those that most examples
    speak for. A rule and its exceptions stay together. What does not fit into ``SKILL.md`` goes
    into references, where like lessons share a file.

    Raises:
        ArgumentValueError: The task's own text leaves no room.
    """
    front = {"name": name, "description": description}
    header = yaml.safe_dump(front, allow_unicode=True, sort_keys=False, width=sys.maxsize)
    head = ["---", f"{header}---", "", *([task, ""] if task else [])]
    left = max_tokens - estimate_tokens("\n".join([*head, LESSONS, "", ""]))
    families = _families(book)
    tokens = sum(map(_family_tokens, families))
    # What does not fit needs a list of references.
    index_room = 0 if tokens <= left else max_tokens // 4
    if left < index_room:
        remedy = "Raise it, or shorten the instruction."
        problem = f"leaves no room beside the instruction's {estimate_tokens(task):,} tokens"
        raise ArgumentValueError("max_tokens", max_tokens, problem, remedy)
    on_page, rest = _choose(families, first, left - index_room)
    index_room = left - sum(map(_family_tokens, on_page))
    topics = _topics([lesson for family in rest for lesson in family], max_tokens)
    files = {f"references/topic-{number:03}.md": topic for number, topic in enumerate(topics, 1)}
    holders = Counter(word for topic in topics for lesson in topic for word in _words(lesson))
    titles = {path: ", ".join(_telling(topic, holders)) for path, topic in files.items()}
    lines = [line_of(lesson) for family in on_page for lesson in family]
    body = [*head, LESSONS, "", *lines, *_index(files, titles, index_room)]
    pages = {
        path: "\n".join([f"# {titles[path]}", "", *map(_with_evidence, topic), ""])
        for path, topic in files.items()
    }
    # In this order they are written: a book stands for pages that are there.
    return {**pages, PAGE: "\n".join(body) + "\n", BOOK: encode_book(book)}


def _choose(
    families: Sequence[Sequence[BookLesson]], first: Collection[str], room: int
) -> tuple[list[Sequence[BookLesson]], list[Sequence[BookLesson]]]:
    """Return the families that fit into ``SKILL.md``, the best first, and the others."""
    chosen: set[int] = set()
    for place in sorted(range(len(families)), key=lambda place: _rank(families[place][0], first)):
        if (tokens := _family_tokens(families[place])) <= room:
            room -= tokens
            chosen.add(place)
    on_page = [family for place, family in enumerate(families) if place in chosen]
    return on_page, [family for place, family in enumerate(families) if place not in chosen]


def _family_tokens(family: Sequence[BookLesson]) -> int:
    return sum(estimate_tokens(line_of(lesson)) + 1 for lesson in family)


def describe(name: str, book: Book, note: str = "") -> str:
    """Return what a skill is about and when it is of use."""
    about = name.replace("-", " ")
    words = ", ".join(_telling(book.served, {}, 12))
    text = f"Lessons about {about}, learned from examples. {note}Use them for {about}: {words}."
    return text[:_LONGEST_DESCRIPTION]


def _families(book: Book) -> list[list[BookLesson]]:
    """Return the served lessons, each rule with its exceptions."""
    served = {lesson.id: lesson for lesson in book.served}

    def root(lesson: BookLesson) -> str:
        while lesson.rule in served:
            lesson = served[lesson.rule]
        return lesson.id

    return [list(family) for _, family in groupby(book.served, root)]


def _rank(lesson: BookLesson, first: Collection[str]) -> tuple[bool, bool, int]:
    return not lesson.own, lesson.id not in first, lesson.harmful - lesson.support


def _topics(lessons: Sequence[BookLesson], max_tokens: int) -> list[list[BookLesson]]:
    """Return groups of like lessons, each of which fits into a file."""
    texts = [lesson.text for lesson in lessons]
    groups = deal_alike(texts, range(len(texts)), _LESSONS_OF_TOPIC, random.Random(0))  # noqa: S311 - no secret
    grouped = {place for group in groups for place in group}
    groups.append(tuple(place for place in range(len(texts)) if place not in grouped))
    topics: list[list[BookLesson]] = []
    for group in filter(None, groups):
        left = 0
        for place in group:
            tokens = estimate_tokens(_with_evidence(lessons[place])) + 1
            if tokens > left:
                topics.append([])
                left = max_tokens - _TITLE
            topics[-1].append(lessons[place])
            left -= tokens
    return topics


def _with_evidence(lesson: BookLesson) -> str:
    return f"{line_of(lesson)}\n{evidence_of(lesson)}"


def _index(
    files: Mapping[str, Sequence[BookLesson]], titles: Mapping[str, str], room: int
) -> list[str]:
    """Return the list of the references, as far as there is room."""
    if not files:
        return []
    lines = ["", REFERENCES, "", _HOW, ""]
    for number, (path, topic) in enumerate(files.items()):
        line = f"- [{path}]({path}): {titles[path]} ({len(topic)} lessons)"
        if estimate_tokens("\n".join([*lines, line])) > room - _ROOM:
            return [*lines, f"- {len(files) - number} more in references/: search their words."]
        lines.append(line)
    return lines


def _words(lesson: BookLesson) -> set[str]:
    return set(_WORD.findall(normalised(lesson.text)))


def _telling(lessons: Sequence[BookLesson], holders: Mapping[str, int], most: int = 4) -> list[str]:
    """Return the words that tell lessons from others: many of these hold them, and few others."""
    own = Counter(word for lesson in lessons for word in _words(lesson))
    ordered = sorted(own, key=lambda word: (-(own[word] ** 2) / holders.get(word, 1), word))
    return ordered[:most]
