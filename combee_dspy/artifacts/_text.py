"""Playbooks as text: ACE's lines, read back without loss. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from combee_dspy.artifacts._book import Book, Bullet
from combee_dspy.reflections import estimate_tokens

__all__ = ["ReadText", "line_of", "read_text", "render", "write_text"]

_LINE = re.compile(r"\[([^\s\[\]]{1,64})\] helpful=(\d{1,9}) harmful=(\d{1,9}) ::(?: (.*))?", re.DOTALL)
_HEADING = re.compile(r"## +(\S.*?)\s*")
_MORE = "    "
_UNNAMED = "OTHER"


@dataclass(frozen=True, slots=True)
class ReadText:
    """What a text holds.

    Attributes:
        book: Its sections and bullets.
        ignored: What of the text is neither, one sentence each.
    """

    book: Book
    ignored: tuple[str, ...] = ()


def line_of(bullet: Bullet) -> str:
    """Return a bullet as ``[id] helpful=X harmful=Y :: content``, further lines of the content indented by four."""
    content = bullet.content.replace("\n", f"\n{_MORE}")
    return f"[{bullet.id}] helpful={bullet.helpful} harmful={bullet.harmful} :: {content}"


def write_text(book: Book) -> str:
    """Return a whole playbook as text that :func:`read_text` reads back, empty sections included."""
    return _text(book.sections, book.bullets)


def render(book: Book, max_tokens: int) -> tuple[str, tuple[Bullet, ...]]:
    """Return what a model reads of a playbook within a budget, and the bullets in it, in the playbook's order.

    Bullets are taken best first: by helpful minus harmful, then by helpful, then in the
    playbook's order. One that does not fit any more is left out, and the next is tried.
    Sections without a bullet are left out too.

    Args:
        book: The playbook.
        max_tokens: Estimated tokens that the text may take.
    """
    best = sorted(book.bullets, key=lambda one: (-one.value, -one.helpful))
    taken: set[str] = set()
    headings: set[str] = set()
    spent = 0
    for bullet in best:
        # Each line is rounded up on its own, so the sum never falls short of the text.
        heading = 0 if bullet.section in headings else estimate_tokens(f"## {bullet.section}\n\n") + 1
        cost = estimate_tokens(line_of(bullet) + "\n") + heading
        if spent + cost > max_tokens:
            continue
        spent += cost
        taken.add(bullet.id)
        headings.add(bullet.section)
    shown = tuple(bullet for bullet in book.bullets if bullet.id in taken)
    return _text([name for name in book.sections if name in headings], shown), shown


def read_text(text: str) -> ReadText:
    """Read a playbook from text: ``## section`` lines, ACE's bullet lines, and what continues a bullet.

    A line without a mark right behind a bullet's belongs to the bullet: models break lines
    without asking. Anything else is ignored, and said to be. An id that stands twice keeps
    its first bullet; a section that stands twice goes on. Where the first line ends with a carriage
    return, all line ends are taken for those of such a file.

    Args:
        text: Any text.
    """
    sections: list[str] = []
    bullets: dict[str, Bullet] = {}
    ignored: list[str] = []
    current, last = "", ""
    if text.partition("\n")[0].endswith("\r"):
        # No text of ours begins so: a section's name ends with no space.
        text = text.replace("\r\n", "\n")
    for number, line in enumerate(text.split("\n"), start=1):
        heading, found = _HEADING.fullmatch(line), _LINE.fullmatch(line)
        if last and (line.startswith(_MORE) or (line.strip() and not heading and not found)):
            more = line.removeprefix(_MORE)
            bullets[last] = replace(bullets[last], content=f"{bullets[last].content}\n{more}")
        elif heading:
            current, last = heading[1], ""
            sections += [current] * (current not in sections)
        elif found:
            current = current or _UNNAMED
            sections += [current] * (current not in sections)
            last = "" if found[1] in bullets else found[1]
            if last:
                bullets[last] = Bullet(last, current, found[4] or "", int(found[2]), int(found[3]))
            else:
                ignored.append(f"line {number}: the id {found[1]!r} stands twice, the first bullet is kept")
        elif not line.strip():
            last = ""
        else:
            ignored.append(f"line {number} is neither a section nor a bullet: {line[:80]!r}")
    return ReadText(Book(tuple(bullets.values()), tuple(sections or [_UNNAMED])), tuple(ignored))


def _text(sections: Iterable[str], bullets: Iterable[Bullet]) -> str:
    by_section: dict[str, list[str]] = {name: [] for name in sections}
    for bullet in bullets:
        by_section[bullet.section].append(line_of(bullet))
    return "\n\n".join("\n".join([f"## {name}", *lines]) for name, lines in by_section.items())
