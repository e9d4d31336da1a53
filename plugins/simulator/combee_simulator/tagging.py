"""How the simulated model judges the bullets of a playbook, and files what it learns."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence

__all__ = ["PLATITUDE", "Tagger", "without_playbook"]

PLATITUDE = "Read every question with care and check the result before you answer."
"""What a model writes in place of what it could not take in."""

_SECTION = r"^\[\[ ## %s ## \]\]\s+(.*?)\s*(?=^\[\[ ## \w+ ## \]\]|\Z)"
_USED = re.compile(_SECTION % "bullets_used", re.MULTILINE | re.DOTALL)
_SECTIONS = re.compile(r"^\[\[ ## sections ## \]\]\s+", re.MULTILINE)
_BULLET = re.compile(r"\[([^\s\[\]]+)\] helpful=\d+ harmful=\d+ :: (.*)")


def without_playbook(user: str) -> tuple[str, str]:
    """Return a user message without the bullets in it, and what those said."""
    used = _USED.search(user)
    return (user[: used.start(1)] + user[used.end(1) :], used[1]) if used else (user, "")


class Tagger:
    """Answers the fields of a playbook's reflector. Stateless and safe to share.

    A bullet is helpful when it names the lesson of the trajectory at hand, and neutral otherwise.
    What is learned belongs to the first section that is about formulas, else to the first of all.

    Args:
        keys_of: Returns the lesson keys in a text.
    """

    def __init__(self, keys_of: Callable[[str], Sequence[str]]) -> None:
        self._keys_of = keys_of

    def tags(self, bullets: str, attended: Sequence[str]) -> dict[str, str]:
        """Return the tag of every bullet, by the keys of the trajectory that were read."""
        matches = (_BULLET.match(line) for line in _strings(bullets))
        helps = {
            bullet[1]: set(self._keys_of(bullet[2])) & set(attended) for bullet in matches if bullet
        }
        return {name: "helpful" if keys else "neutral" for name, keys in helps.items()}

    def section(self, user: str) -> str:
        """Return the section, of those that a request names, that an insight belongs to."""
        sections = _list_at(user, _SECTIONS)
        return next(
            (name for name in sections if "formula" in name.lower()),
            sections[0] if sections else "",
        )


def _strings(section: str) -> list[str]:
    try:
        value = json.loads(section)
    except (ValueError, RecursionError):
        # ChatAdapter numbers the items of a list of texts.
        return re.findall(
            r"^(?:\[\d+\] )?[«\"]*(\[[^\s\[\]]+\] helpful=.*?)[»\"]*$", section, re.MULTILINE
        )
    return [str(item) for item in value] if isinstance(value, list) else []


def _list_at(user: str, header: re.Pattern[str]) -> list[str]:
    found = header.search(user)
    if not found:
        return []
    try:
        value = json.JSONDecoder().raw_decode(user, found.end())[0]
    except (ValueError, RecursionError):
        return re.findall(
            r"^\[\d+\] «(.*?)»$", user[found.end() :].split("[[ ##", 1)[0], re.MULTILINE
        )
    return [str(item) for item in value] if isinstance(value, list) else []
