"""A playbook's content: sections of bullets, as frozen values and as ACE's lines of text. Pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.reflections import estimate_tokens, normalised

SECTIONS = ("STRATEGIES", "FORMULAS AND DEFINITIONS", "FORMATS", "COMMON MISTAKES", "OTHER")
"""Sections of a playbook that nobody has named any for. The last one takes what fits nowhere else."""

_ID = re.compile(r"[^\s\[\]]{1,64}")
_SLUG = re.compile(r"[^a-z0-9]+")
_LINE = re.compile(r"\[([^\s\[\]]{1,64})\] helpful=(\d{1,9}) harmful=(\d{1,9}) ::(?: (.*))?", re.DOTALL)
_HEADING = re.compile(r"## +(\S.*?)\s*")
_MORE = "    "
_UNNAMED = "OTHER"


@dataclass(frozen=True, slots=True)
class Bullet:
    """One piece of advice.

    Attributes:
        id: Names it for good: no space, no bracket, at most 64 characters (else ``ArgumentValueError``).
        section: The section it stands in.
        content: What it says. Any text in any script, over several lines too.
        helpful: How often it was judged to have helped; ``harmful`` likewise.
    """

    id: str
    section: str
    content: str
    helpful: int = 0
    harmful: int = 0

    def __post_init__(self) -> None:
        if not _ID.fullmatch(self.id):
            remedy = "Use up to 64 characters without spaces and brackets."
            raise ArgumentValueError("bullet.id", self.id, "is no bullet's id", remedy)

    @property
    def value(self) -> int:
        """Helpful minus harmful."""
        return self.helpful - self.harmful

    @property
    def line(self) -> str:
        """``[id] helpful=X harmful=Y :: content``, further lines of the content indented by four."""
        content = self.content.replace("\n", f"\n{_MORE}")
        return f"[{self.id}] helpful={self.helpful} harmful={self.harmful} :: {content}"


@dataclass(frozen=True, slots=True)
class Book:
    """Sections of bullets, in order: by section, and in each those that harm more than they help last.

    Attributes:
        bullets: The bullets. They may be given in any order, which is kept within a section.
        sections: At least one name, each once: one line of text without spaces at its ends.

    Raises:
        ArgumentValueError: There is no section, a name has another form, an id stands twice, or a bullet stands in no
            section.
    """

    bullets: tuple[Bullet, ...] = ()
    sections: tuple[str, ...] = SECTIONS

    def __post_init__(self) -> None:
        names = self.sections
        lines = all(one and one == one.strip() and "\n" not in one for one in names)
        if not names or not lines or len(set(names)) < len(names):
            remedy = "Give names of one line without spaces around them, each once."
            raise ArgumentValueError("sections", names, "are no names of sections", remedy)
        ids = [bullet.id for bullet in self.bullets]
        if len(set(ids)) != len(ids):
            raise ArgumentValueError("bullets", ids, "share an id", "Give each bullet an id of its own.")
        missing = sorted({bullet.section for bullet in self.bullets} - set(names))
        if missing:
            raise ArgumentValueError("bullets", missing, "stand in sections that are not named", "Name them.")
        ordered = sorted(self.bullets, key=lambda one: (names.index(one.section), one.value < 0))
        object.__setattr__(self, "bullets", tuple(ordered))

    def get(self, bullet_id: str) -> Bullet | None:
        """Return the bullet of this id, if there is one."""
        return next((bullet for bullet in self.bullets if bullet.id == bullet_id), None)

    def counted(self, helpful: Mapping[str, int], harmful: Mapping[str, int]) -> Book:
        """Return the book with more on its bullets' counters. Ids that it does not hold change nothing."""
        more = [(one, helpful.get(one.id, 0), harmful.get(one.id, 0)) for one in self.bullets]
        counted = [replace(one, helpful=one.helpful + up, harmful=one.harmful + down) for one, up, down in more]
        return Book(tuple(counted), self.sections)


@dataclass(frozen=True, slots=True)
class ReadText:
    """What a text holds: a playbook, and what is neither section nor bullet, one sentence each."""

    book: Book
    ignored: tuple[str, ...] = ()


def own_id(section: str, content: str) -> str:
    """Return the id of a bullet that is added: it follows from what it says, so adding it again adds nothing.

    The section gives the readable part before the dash, the content, whatever its case and punctuation, the eight hex
    digits behind it.
    """
    words = [word for word in _SLUG.split(section.casefold()) if word]
    said = normalised(content) or content
    digest = hashlib.sha256(said.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{words[0][:4] if words else 'note'}-{digest}"


def write_text(book: Book) -> str:
    """Return a whole playbook as text that :func:`read_text` reads back, empty sections included."""
    return _text(book.sections, book.bullets)


def render(book: Book, max_tokens: int) -> tuple[str, tuple[Bullet, ...]]:
    """Return what a model reads of a playbook within a budget, and the bullets in it, in the playbook's order.

    Bullets are taken best first: by helpful minus harmful, then by helpful, then in the playbook's order. One that does
    not fit any more is left out, and the next is tried. Sections without a bullet are left out too. ``max_tokens`` are
    estimated tokens of the text.
    """
    taken: set[str] = set()
    headings: set[str] = set()
    left = max_tokens
    for bullet in sorted(book.bullets, key=lambda one: (-one.value, -one.helpful)):
        # Each line is rounded up on its own, so the sum never falls short of the text.
        heading = 0 if bullet.section in headings else estimate_tokens(f"## {bullet.section}\n\n") + 1
        cost = estimate_tokens(bullet.line + "\n") + heading
        if cost <= left:
            left -= cost
            taken.add(bullet.id)
            headings.add(bullet.section)
    shown = tuple(bullet for bullet in book.bullets if bullet.id in taken)
    return _text([name for name in book.sections if name in headings], shown), shown


def _text(sections: Iterable[str], bullets: Iterable[Bullet]) -> str:
    by_section: dict[str, list[str]] = {name: [] for name in sections}
    for bullet in bullets:
        by_section[bullet.section].append(bullet.line)
    return "\n\n".join("\n".join([f"## {name}", *lines]) for name, lines in by_section.items())


def read_text(text: str) -> ReadText:
    """Read a playbook from any text: ``## section`` lines, ACE's bullet lines, and what continues a bullet.

    A line without a mark right behind a bullet's belongs to the bullet: models break lines without asking. Anything
    else is ignored, and said to be. An id that stands twice keeps its first bullet; a section that stands twice goes
    on. Where the first line ends with a carriage return, all line ends are taken for those of such a file.
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
            name, last = found[1], "" if found[1] in bullets else found[1]
            if not last:
                ignored.append(f"line {number}: the id {name!r} stands twice, the first bullet is kept")
            bullets.setdefault(name, Bullet(name, current, found[4] or "", int(found[2]), int(found[3])))
        elif not line.strip():
            last = ""
        else:
            ignored.append(f"line {number} is neither a section nor a bullet: {line[:80]!r}")
    return ReadText(Book(tuple(bullets.values()), tuple(sections or [_UNNAMED])), tuple(ignored))
