"""Playbooks as text: ACE's lines, read back without loss. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from combee_dspy.artifacts._playbook import Bullet, Playbook
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.reflections import estimate_tokens

__all__ = ["ReadText", "Rendered", "line_of", "read_text", "render", "write_text"]

_LINE = re.compile(r"\[([^\s\[\]]{1,64})\] helpful=(\d{1,9}) harmful=(\d{1,9}) ::(?: (.*))?", re.DOTALL)
_HEADING = re.compile(r"## +(\S.*?)\s*")
_MORE = "    "
_UNNAMED = "OTHER"


@dataclass(frozen=True, slots=True)
class Rendered:
    """A playbook as a model reads it.

    Attributes:
        text: The sections with their bullets; sections without any are left out.
        shown: Ids of the bullets in it, in order.
        left_out: Ids of those that the budget had no room for, best first.
        tokens: Estimated tokens of ``text``.
    """

    text: str
    shown: tuple[str, ...]
    left_out: tuple[str, ...]
    tokens: int


@dataclass(frozen=True, slots=True)
class ReadText:
    """What a text holds.

    Attributes:
        playbook: Its sections and bullets.
        ignored: What of the text is neither, one sentence each.
    """

    playbook: Playbook
    ignored: tuple[str, ...] = ()


def line_of(bullet: Bullet) -> str:
    """Return a bullet as ``[id] helpful=X harmful=Y :: content``, further lines of the content indented by four."""
    content = bullet.content.replace("\n", f"\n{_MORE}")
    return f"[{bullet.id}] helpful={bullet.helpful} harmful={bullet.harmful} :: {content}"


def write_text(playbook: Playbook) -> str:
    """Return the whole playbook as text that :func:`read_text` reads back, empty sections included."""
    return _text(playbook.sections, playbook.bullets)


def render(playbook: Playbook, max_tokens: int | None = None) -> Rendered:
    """Return what of a playbook fits a budget, in the playbook's order.

    Bullets are taken best first: by helpful minus harmful, then by helpful, then in the
    playbook's order. One that does not fit any more is left out, and the next is tried.

    Args:
        playbook: The playbook.
        max_tokens: Estimated tokens that the text may take; ``None`` for no limit.

    Raises:
        ArgumentValueError: The budget is below 1.
    """
    if max_tokens is not None and max_tokens < 1:
        raise ArgumentValueError("max_tokens", max_tokens, "is below 1", "Give a budget, or None for no limit.")
    places = {bullet.id: number for number, bullet in enumerate(playbook.bullets)}
    best = sorted(playbook.bullets, key=lambda one: (-one.value, -one.helpful, places[one.id]))
    taken: set[str] = set()
    headings: set[str] = set()
    spent, left_out = 0, []
    for bullet in best:
        # Each line is rounded up on its own, so the sum never falls short of the text.
        heading = 0 if bullet.section in headings else estimate_tokens(f"## {bullet.section}\n\n") + 1
        cost = estimate_tokens(line_of(bullet) + "\n") + heading
        if max_tokens is not None and spent + cost > max_tokens:
            left_out.append(bullet.id)
            continue
        spent += cost
        taken.add(bullet.id)
        headings.add(bullet.section)
    kept = [bullet for bullet in playbook.bullets if bullet.id in taken]
    text = _text([name for name in playbook.sections if name in headings], kept)
    return Rendered(text, tuple(bullet.id for bullet in kept), tuple(left_out), estimate_tokens(text))


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
    bullets: list[Bullet] = []
    ignored: list[str] = []
    known: set[str] = set()
    current, open_bullet = "", False
    if text.partition("\n")[0].endswith("\r"):
        # No text of ours begins so: a section's name ends with no space.
        text = text.replace("\r\n", "\n")
    for number, line in enumerate(text.split("\n"), start=1):
        heading, found = _HEADING.fullmatch(line), _LINE.fullmatch(line)
        if open_bullet and line.startswith(_MORE):
            bullets[-1] = replace(bullets[-1], content=f"{bullets[-1].content}\n{line[len(_MORE) :]}")
        elif heading:
            current, open_bullet = heading[1], False
            sections += [current] * (current not in sections)
        elif found:
            current = current or _UNNAMED
            sections += [current] * (current not in sections)
            open_bullet = found[1] not in known
            if open_bullet:
                known.add(found[1])
                counts = int(found[2]), int(found[3])
                bullets.append(Bullet(found[1], current, found[4] or "", *counts, place=len(bullets)))
            else:
                ignored.append(f"line {number}: the id {found[1]!r} stands twice, the first bullet is kept")
        elif not line.strip():
            open_bullet = False
        elif open_bullet:
            bullets[-1] = replace(bullets[-1], content=f"{bullets[-1].content}\n{line}")
        else:
            ignored.append(f"line {number} is neither a section nor a bullet: {line[:80]!r}")
    return ReadText(_sorted(bullets, sections or [_UNNAMED]), tuple(ignored))


def _sorted(bullets: Iterable[Bullet], sections: Sequence[str]) -> Playbook:
    rank = {name: number for number, name in enumerate(sections)}
    return Playbook(tuple(sorted(bullets, key=lambda one: rank[one.section])), tuple(sections))


def _text(sections: Iterable[str], bullets: Iterable[Bullet]) -> str:
    by_section: dict[str, list[str]] = {name: [] for name in sections}
    for bullet in bullets:
        by_section[bullet.section].append(line_of(bullet))
    return "\n\n".join("\n".join([f"## {name}", *lines]) for name, lines in by_section.items())
