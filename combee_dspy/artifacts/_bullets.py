"""A playbook as text: written, read and cut to a budget by code. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.reflections import estimate_tokens

SECTIONS = ("STRATEGIES", "FORMULAS AND DEFINITIONS", "FORMATS", "COMMON MISTAKES", "OTHER")
"""Sections of a playbook by default. The last one takes what fits nowhere else."""

_LINE = re.compile(
    r"\[([^\s\[\]]{1,64})\] helpful=(\d{1,9}) harmful=(\d{1,9}) ::(?: (.*))?", re.DOTALL
)
_HEADING = re.compile(r"## +(\S.*?)\s*")
_MORE = "    "
_UNNAMED = "OTHER"


@dataclass(frozen=True, slots=True)
class Bullet:
    """One piece of advice.

    Attributes:
        id: Names it for good: no space, no bracket, at most 64 characters.
        section: The section that holds it.
        content: Any text in any script, over several lines too.
        helpful: How many examples speak for it; ``harmful`` how many it harmed.
    """

    id: str
    section: str
    content: str
    helpful: int = 0
    harmful: int = 0

    @property
    def value(self) -> int:
        """Helpful minus harmful."""
        return self.helpful - self.harmful

    @property
    def line(self) -> str:
        """``[id] helpful=X harmful=Y :: content``, further lines indented by four."""
        content = self.content.replace("\n", f"\n{_MORE}")
        return f"[{self.id}] helpful={self.helpful} harmful={self.harmful} :: {content}"


@dataclass(frozen=True, slots=True)
class BulletText:
    """What a playbook's text holds.

    Attributes:
        bullets: The bullets, by section, and in each those that harm more than they help last; else
            as they are given.
        sections: Names of sections, each once: one line of text without spaces at its ends.
        ignored: What a text holds that is neither section nor bullet, one sentence each.

    Raises:
        ArgumentValueError: There is no section, or a name has another form.
    """

    bullets: tuple[Bullet, ...] = ()
    sections: tuple[str, ...] = SECTIONS
    ignored: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        names = self.sections
        valid = all(name and name == name.strip() and "\n" not in name for name in names)
        if not names or not valid or len(set(names)) < len(names):
            remedy = "Give names of one line without spaces around them, each once."
            raise ArgumentValueError("sections", names, "are no names of sections", remedy)
        ordered = sorted(
            self.bullets, key=lambda bullet: (names.index(bullet.section), bullet.value < 0)
        )
        object.__setattr__(self, "bullets", tuple(ordered))

    def __str__(self) -> str:
        """Return the text that :func:`read_text` reads back, empty sections included."""
        by_section: dict[str, list[str]] = {name: [f"## {name}"] for name in self.sections}
        for bullet in self.bullets:
            by_section[bullet.section].append(bullet.line)
        return "\n\n".join(map("\n".join, by_section.values()))

    def within(self, max_tokens: int) -> BulletText:
        """Return what a model reads of it within a budget of estimated tokens.

        Bullets are taken best first: by helpful minus harmful, then by helpful, then in their
        order. One that does not fit any more is left out, and the next is tried.
        """
        chosen: set[str] = set()
        sections: set[str] = set()
        left = max_tokens
        for bullet in sorted(self.bullets, key=lambda bullet: (-bullet.value, -bullet.helpful)):
            # Each line is rounded up on its own, so the sum never falls short of the text.
            tokens = estimate_tokens(f"{bullet.line}\n")
            if bullet.section not in sections:
                tokens += estimate_tokens(f"## {bullet.section}\n\n") + 1
            if tokens <= left:
                left -= tokens
                chosen.add(bullet.id)
                sections.add(bullet.section)
        names = tuple(name for name in self.sections if name in sections)
        bullets = tuple(bullet for bullet in self.bullets if bullet.id in chosen)
        return BulletText(bullets, names or self.sections)


def read_text(text: str) -> BulletText:
    """Read a playbook from any text: ``## section`` lines and ACE's bullets.

    A line without a mark right behind a bullet's belongs to the bullet: models break lines without
    asking. Anything else is ignored, and ``ignored`` says so. An id that stands twice keeps its
    first bullet; a section that stands twice goes on. Where the first line ends with a carriage
    return, all line ends are taken for those of such a file.
    """
    if text.partition("\n")[0].endswith("\r"):
        # No text of ours begins so: a section's name ends with no space.
        text = text.replace("\r\n", "\n")
    sections: dict[str, None] = {}
    bullets: dict[str, Bullet] = {}
    contents: dict[str, list[str]] = {}
    ignored: list[str] = []
    section, lines = _UNNAMED, None
    for number, line in enumerate(text.split("\n"), start=1):
        heading, bullet = _HEADING.fullmatch(line), _LINE.fullmatch(line)
        goes_on = line.startswith(_MORE) or (line.strip() and not heading and not bullet)
        if lines is not None and goes_on:
            lines.append(line.removeprefix(_MORE))
            continue
        lines = None
        if heading:
            section = heading[1]
            sections.setdefault(section)
        elif bullet and bullet[1] in bullets:
            ignored.append(f"line {number}: the id {bullet[1]!r} stands twice, the first is kept")
        elif bullet:
            sections.setdefault(section)
            lines = contents[bullet[1]] = [bullet[4] or ""]
            bullets[bullet[1]] = Bullet(bullet[1], section, "", int(bullet[2]), int(bullet[3]))
        elif line.strip():
            ignored.append(f"line {number} is neither a section nor a bullet: {line[:80]!r}")
    read = (replace(bullet, content="\n".join(contents[name])) for name, bullet in bullets.items())
    return BulletText(tuple(read), tuple(sections) or (_UNNAMED,), tuple(ignored))
