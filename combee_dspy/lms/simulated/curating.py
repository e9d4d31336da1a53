"""How the simulated model tags bullets and curates a playbook."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

from combee_dspy.lms.simulated.capacity import CapacityModel

__all__ = ["PLAYBOOK_FIELDS", "Curator", "without_playbook"]

PLAYBOOK_FIELDS = ("bullet_tags", "operations")

_SECTION = r"^\[\[ ## %s ## \]\]\s+(.*?)\s*(?=^\[\[ ## \w+ ## \]\]|\Z)"
_CURRENT = tuple(re.compile(_SECTION % name, re.MULTILINE | re.DOTALL) for name in ("current_playbook", "bullets_used"))
_SECTIONS = re.compile(r"^\[\[ ## sections ## \]\]\s+", re.MULTILINE)
_BULLET = re.compile(r"\[([^\s\[\]]+)\] helpful=\d+ harmful=\d+ :: (.*)")


def without_playbook(user: str) -> tuple[str, str]:
    """Return a user message without the playbook and the bullets in it, and what those said."""
    said = []
    for pattern in _CURRENT:
        found = pattern.search(user)
        if found:
            said.append(found[1])
            user = user[: found.start(1)] + user[found.end(1) :]
    return user, "\n".join(said)


class Curator:
    """Answers the fields of a playbook's reflector and curator. Stateless and safe to share.

    A bullet is helpful when it names the lesson of the trajectory at hand, and neutral
    otherwise. A curator adds the lessons that it reads in the insights and that the playbook
    lacks, as many as the capacity law lets it take in and write; what the law cut is made up
    for with a platitude. It neither rewrites, merges nor deletes.

    Args:
        keys_of: Returns the lesson keys in a text.
        capacity: The law.
        seed: Seed of every draw.
    """

    def __init__(self, keys_of: Callable[[str], Sequence[str]], capacity: CapacityModel, seed: int) -> None:
        self._keys_of = keys_of
        self._capacity = capacity
        self._seed = seed

    def tags(self, bullets: str, attended: Sequence[str]) -> dict[str, str]:
        """Return the tag of every bullet that was shown.

        Args:
            bullets: The bullets' section, as the adapter wrote it.
            attended: Keys of the trajectory that were read.
        """
        shown = _strings(bullets)
        tags = {}
        for line in shown:
            found = _BULLET.match(line)
            if found:
                helps = bool(set(self._keys_of(found[2])) & set(attended))
                tags[found[1]] = "helpful" if helps else "neutral"
        return tags

    def operations(
        self,
        user: str,
        lines: Sequence[str],
    ) -> list[dict[str, Any]]:
        """Return additions, in the section that is about formulas or else the first one."""
        sections = _list_at(user, _SECTIONS)
        section = next((name for name in sections if "formula" in name.lower()), sections[0] if sections else "")
        return [{"op": "ADD", "section": section, "content": line} for line in lines]

    def new_keys(self, playbook: str, attended: Sequence[str], place: tuple[str, int, int]) -> list[str]:
        """Return the lessons that are written: what was read and the playbook lacks."""
        known = set(self._keys_of(playbook))
        fresh = tuple(key for key in dict.fromkeys(attended) if key not in known)
        return list(self._capacity.write((), fresh, self._seed, *place))


def _strings(section: str) -> list[str]:
    try:
        value = json.loads(section)
    except (ValueError, RecursionError):
        # ChatAdapter numbers the items of a list of texts.
        return re.findall(r"^(?:\[\d+\] )?[«\"]*(\[[^\s\[\]]+\] helpful=.*?)[»\"]*$", section, re.MULTILINE)
    return [str(item) for item in value] if isinstance(value, list) else []


def _list_at(user: str, header: re.Pattern[str]) -> list[str]:
    found = header.search(user)
    if not found:
        return []
    try:
        value = json.JSONDecoder().raw_decode(user, found.end())[0]
    except (ValueError, RecursionError):
        return re.findall(r"^\[\d+\] «(.*?)»$", user[found.end() :].split("[[ ##", 1)[0], re.MULTILINE)
    return [str(item) for item in value] if isinstance(value, list) else []
