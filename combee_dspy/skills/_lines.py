"""A lesson as a line of Markdown, and back. Pure.

Lessons come from language models. On a page they are one line of visible text each: no markup, no
link, no comment, and nothing that begins another line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from combee_dspy.json_texts import sound
from combee_dspy.lessons import BookLesson

# What Markdown takes for an escape, a tag, a link, a fence, or the beginning of another block.
_MARKUP = re.compile(
    r"\\(?=[!-/:-@\[-`{-~])|<(?=[A-Za-z/!?])|\](?=[(\[:])|`{3,}|~{3,}|^[#>+*=|~_-]"
)
_ESCAPED = re.compile(r"\\([!-/:-@\[-`{-~])")
_MARK = re.compile(r"(.*?) ?\[([A-Za-z0-9._-]{1,64}) (\d{1,9}) for, (\d{1,9}) against\]")
_BULLETS = ("- ", "* ", "+ ")
_EVIDENCE = "Evidence: "
_CUT = " …"
# Characters of a lesson, and names of examples, on a page. The book holds all of them.
_LONGEST, _NAMED, _NAME = 600, 8, 40


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a page.

    Attributes:
        text: As the page has it, escaped.
        lesson: The id beside it; empty where a person wrote the line.
        helpful: Examples that speak for it; ``harmful`` those against it.
    """

    text: str
    lesson: str = ""
    helpful: int = 0
    harmful: int = 0


def line_of(lesson: BookLesson) -> str:
    """Return the line that shows a lesson, with its id and its count of examples."""
    counts = f"{lesson.helpful} for, {lesson.harmful} against"
    return f"- {_cut(_escape(lesson.text))} [{lesson.id} {counts}]"


def evidence_of(lesson: BookLesson) -> str:
    """Return the line below a lesson that names its examples."""
    parts = [f"taught by {_names(lesson.sources)}"] if lesson.sources else []
    parts += [f"harmed {_names(lesson.against)}"] if lesson.against else []
    parts += [f"update {lesson.born}"] if lesson.born >= 0 else []
    parts += [str(lesson.effect)] if lesson.effect else []
    parts += [f"exception to {_cut(_escape(lesson.rule), _NAME)}"] if lesson.rule else []
    return f"  {_EVIDENCE}" + ("; ".join(parts) or "written by hand")


def same_text(lesson: BookLesson, text: str) -> bool:
    """Return whether a line still shows a lesson as it was written."""
    return text == _cut(_escape(lesson.text))


def edited(lesson: BookLesson, text: str) -> str:
    """Return the text of an edited line, with what the page cut off where its mark is left."""
    whole = _escape(lesson.text)
    cut = _cut(whole)
    rest = _CUT if cut == whole else whole[len(cut) - len(_CUT) :]
    return unescape(rest.join(text.rsplit(_CUT, 1)))


def unescape(text: str) -> str:
    """Return the text of a line, without escapes."""
    return _ESCAPED.sub(r"\1", text)


def read_lines(page: str) -> list[Line]:
    """Return the bullets of a page, in their order. One may go on over indented lines."""
    items: list[str] = []
    open_item = False
    for line in page.splitlines():
        if line.startswith(_BULLETS):
            items.append(line[2:].strip())
        elif open_item and line.startswith("  ") and not line.strip().startswith(_EVIDENCE):
            items[-1] += f" {line.strip()}"
            continue
        open_item = line.startswith(_BULLETS)
    return [_read(item) for item in items]


def _read(item: str) -> Line:
    marked = _MARK.fullmatch(item)
    if marked is None:
        return Line(item)
    return Line(marked[1], marked[2], int(marked[3]), int(marked[4]))


def _escape(text: str) -> str:
    printable = "".join(letter if letter.isprintable() else " " for letter in sound(text))
    return _MARKUP.sub(
        lambda markup: "".join(f"\\{letter}" for letter in markup[0]), " ".join(printable.split())
    )


def _cut(line: str, longest: int = _LONGEST) -> str:
    return line if len(line) <= longest else line[: longest - len(_CUT)].rstrip() + _CUT


def _names(examples: tuple[str, ...]) -> str:
    named = ", ".join(_cut(_escape(name), _NAME) for name in examples[:_NAMED])
    count = f"{len(examples)} example{'s' * (len(examples) != 1)}"
    return f"{count}: {named}{', …' if len(examples) > _NAMED else ''}"
