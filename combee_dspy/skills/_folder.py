"""A skill in a folder: written, and read back with what people have changed in it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

import yaml

from combee_dspy.edits import Remove
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.files import check_folder, delete_plain, make_folder, read_plain, write_plain
from combee_dspy.json_texts import sound
from combee_dspy.lessons import Book, BookLesson, Taught, decode_book, lesson_id
from combee_dspy.skills._lines import Line, edited, read_lines, same_text, unescape
from combee_dspy.skills._pages import BOOK, LESSONS, PAGE, REFERENCES, describe, pages_of

_TOPIC = re.compile(r"topic-\d{3,}\.md", re.ASCII)
_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_LONGEST_NAME, _LEAST_TOKENS = 64, 2_000
_REMEDY = "Give a folder that combee skill wrote, or any with a SKILL.md."


@dataclass(frozen=True, slots=True)
class SkillFolder:
    """What a skill holds.

    Attributes:
        book: Every lesson with its evidence. Those that a person wrote or changed are ``own``, and
            those whose line a person took out are ``removed_by_user``.
        task: The instruction above the lessons; may be empty.
        description: What it is about, and when it is of use; empty for one made of the lessons.
        first: Ids of the lessons that ``SKILL.md`` holds before others.
    """

    book: Book
    task: str = ""
    description: str = ""
    first: frozenset[str] = field(default_factory=frozenset)


def write_skill(
    folder: str | Path, skill: SkillFolder, *, max_tokens: int = 5_000, note: str = ""
) -> tuple[Path, ...]:
    """Write a skill as a folder; its last part is the skill's name.

    Where a skill lies there already, what people changed in it is taken over: its description, the
    lessons that they wrote or edited, and those that they took out. Files of other names stay.

    Args:
        folder: Where; it is made where it is missing.
        skill: What it holds.
        max_tokens: Estimated tokens of ``SKILL.md``, and of each reference. Agents load the first
            whole once they choose the skill.
        note: A sentence for the description that is made of the lessons, with a space at its end.

    Returns:
        The files, ``SKILL.md`` first.

    Raises:
        ArgumentValueError: The folder's name cannot name a skill, ``max_tokens`` is below 2,000 or
            leaves no room for lessons, or what lies there cannot be read.
        NotPlainFileError: A link or a special file lies in the place of a file.
        OSError: A file cannot be written.
    """
    home = Path(folder)
    name = home.absolute().name
    if not _NAME.fullmatch(name) or len(name) > _LONGEST_NAME:
        remedy = "Use lower case letters and digits, words joined by '-': skills/order-codes."
        raise ArgumentValueError("folder", str(folder), "ends with no name of a skill", remedy)
    if max_tokens < _LEAST_TOKENS:
        raise ArgumentValueError("max_tokens", max_tokens, "is too small", "Give 2,000 or more.")
    if (home / PAGE).exists():
        before = read_skill(home)
        book = _keep_edits(skill.book, before.book)
        description, task = skill.description or before.description, skill.task or before.task
        skill = replace(skill, book=book, description=description, task=task)
    description = skill.description or describe(name, skill.book, note)
    pages = pages_of(name, description, skill.task, skill.book, skill.first, max_tokens)
    check_folder(home / "references")
    make_folder(home / "references")
    # Without it the pages count: a writer that is killed takes no lesson for one that was removed.
    delete_plain(home / BOOK)
    for path in _topics(home):
        if path.relative_to(home).as_posix() not in pages:
            delete_plain(path)
    for name, text in pages.items():
        write_plain(home / name, sound(text))
    return tuple(home / name for name in sorted(pages))


def read_skill(folder: str | Path) -> SkillFolder:
    """Read a skill, with what people have changed since it was written.

    A line that says something else, and one that is new, are lessons of the user's own. A lesson
    whose line is gone was removed by the user. Without ``references/lessons.json`` only the lines
    are read: their counts replace the examples.

    Raises:
        ArgumentValueError: There is no skill, or it cannot be read.
        NotPlainFileError: A link or a special file lies in the place of a file.
    """
    home = Path(folder)
    description, body = _front_matter(home, _text(home / PAGE))
    task, header, lessons = f"\n{body}".rpartition(f"\n{LESSONS}\n")
    if not header:
        task, lessons = lessons, ""
    on_page = read_lines(lessons.partition(f"\n{REFERENCES}\n")[0])
    check_folder(home / "references")
    lines = [*on_page]
    for path in _topics(home):
        lines += read_lines(_text(path))
    is_whole = (home / BOOK).exists()
    stored = decode_book(_text(home / BOOK)) if is_whole else _counted(lines)
    first = frozenset(line.lesson for line in on_page if line.lesson)
    return SkillFolder(_with_edits(stored, lines), task.strip(), description, first)


def _topics(home: Path) -> list[Path]:
    paths = home.glob("references/topic-*.md")
    return sorted(path for path in paths if _TOPIC.fullmatch(path.name))


def _text(path: Path) -> str:
    try:
        return read_plain(path).decode("utf-8-sig", "replace").replace("\r\n", "\n")
    except OSError as error:
        raise ArgumentValueError(
            "folder", str(path), f"cannot be read: {error.strerror}", _REMEDY
        ) from error


def _front_matter(home: Path, text: str) -> tuple[str, str]:
    """Return the description, and the text below the front matter."""
    opening, fence, rest = text.partition("---\n")
    front, end, body = rest.partition("\n---\n")
    if opening or not fence or not end:
        return "", text
    try:
        values = yaml.safe_load(front)
    except (yaml.YAMLError, RecursionError) as error:
        raise ArgumentValueError(
            "folder", str(home), f"has a front matter that is no YAML: {error}", _REMEDY
        ) from error
    described = values.get("description") if isinstance(values, dict) else None
    return described if isinstance(described, str) else "", body


def _counted(lines: Iterable[Line]) -> Book:
    """Return the book that marked lines alone tell of."""
    lessons = {
        line.lesson: BookLesson(
            line.lesson,
            unescape(line.text),
            helped=line.helpful,
            harmed=line.harmful,
            wordings=(line.lesson,),
        )
        for line in lines
        if line.lesson
    }
    return Book(tuple(lessons.values()))


def _with_edits(stored: Book, lines: Iterable[Line]) -> Book:
    lessons = {lesson.id: lesson for lesson in stored.lessons}
    left = {lesson.id for lesson in stored.served}
    added: list[str] = []
    for line in lines:
        lesson, text = lessons.get(line.lesson), unescape(line.text)
        if lesson is not None and same_text(lesson, line.text):
            left.discard(lesson.id)
        elif text and lesson is not None and lesson.id in left:
            left.remove(lesson.id)
            lessons[lesson.id] = _reworded(lesson, edited(lesson, line.text))
        elif text:
            added.append(text)
    book = Book(tuple(lessons.values())).edit(map(Remove, sorted(left))).book
    return book.add(map(Taught, added), born=-1)


def _reworded(lesson: BookLesson, text: str) -> BookLesson:
    """Return a lesson in the user's own words. What was measured was its former wording."""
    return replace(
        lesson,
        text=text,
        own=True,
        state="served",
        reason="",
        decision=None,
        effect=None,
        rule="",
        wordings=tuple(dict.fromkeys((*lesson.wordings, lesson_id(text)))),
        texts=tuple(dict.fromkeys((*lesson.texts, lesson.text))),
    )


def _keep_edits(book: Book, before: Book) -> Book:
    """Return a book with what people changed in an earlier one."""
    removed = [lesson.text for lesson in before.lessons if lesson.state == "removed_by_user"]
    lessons = {lesson.id: lesson for lesson in book.without(removed).lessons}
    for mine in (lesson for lesson in before.lessons if lesson.own):
        same = (
            lesson
            for lesson in lessons.values()
            if not {lesson.id, *lesson.wordings}.isdisjoint(mine.wordings)
        )
        home = next(same, mine)
        lessons[home.id] = home if home.text == mine.text else _reworded(home, mine.text)
        lessons[home.id] = replace(lessons[home.id], own=True, state="served", decision=None)
    return Book(tuple(lessons.values()))
