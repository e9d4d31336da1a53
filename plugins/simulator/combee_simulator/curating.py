"""How the simulated model tags bullets and curates a playbook."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from combee_simulator.capacity import CapacityModel
from combee_simulator.laws import uniform

__all__ = ["PLATITUDE", "Curator", "without_playbook"]

PLATITUDE = "Read every question with care and check the result before you answer."
"""What a model writes in place of what it could not take in."""

_BRIEF = 0.125

_SECTION = r"^\[\[ ## %s ## \]\]\s+(.*?)\s*(?=^\[\[ ## \w+ ## \]\]|\Z)"
_CURRENT = tuple(
    re.compile(_SECTION % name, re.MULTILINE | re.DOTALL)
    for name in ("current_playbook", "bullets_used")
)
_SECTIONS = re.compile(r"^\[\[ ## sections ## \]\]\s+", re.MULTILINE)
_BULLET = re.compile(r"\[([^\s\[\]]+)\] helpful=\d+ harmful=\d+ :: (.*)")


def without_playbook(user: str) -> tuple[str, str]:
    """Return a user message without the playbook and the bullets in it, and what those said."""
    bullets = []
    for pattern in _CURRENT:
        match = pattern.search(user)
        if match:
            bullets.append(match[1])
            user = user[: match.start(1)] + user[match.end(1) :]
    return user, "\n".join(bullets)


class Curator:
    """Answers the fields of a playbook's reflector and curator. Stateless and safe to share.

    A bullet is helpful when it names the lesson of the trajectory at hand, and neutral
    otherwise. A curator adds the lessons that it reads in the insights and that the playbook
    lacks, as many as the capacity law lets it take in and write; what the law cut is made up
    for with a platitude. One addition in eight, by a draw of the call, breaks off after half of its
    words, so that curators of one minibatch may word a lesson differently. A lesson that is read
    again completes such a bullet, and merges bullets that state it twice. A curator that is not
    crowded deletes the platitude.

    Args:
        keys_of: Returns the lesson keys in a text.
        capacity: The law.
        seed: Seed of every draw.
    """

    def __init__(
        self, keys_of: Callable[[str], Sequence[str]], capacity: CapacityModel, seed: int
    ) -> None:
        self._keys_of = keys_of
        self._capacity = capacity
        self._seed = seed

    def tags(self, bullets: str, attended: Sequence[str]) -> dict[str, str]:
        """Return the tag of every bullet, by the keys of the trajectory that were read."""
        matches = (_BULLET.match(line) for line in _strings(bullets))
        helps = {
            match[1]: set(self._keys_of(match[2])) & set(attended) for match in matches if match
        }
        return {name: "helpful" if keys else "neutral" for name, keys in helps.items()}

    def operations(
        self,
        user: str,
        playbook: str,
        lessons: Mapping[str, str],
        platitude: str | None,
        place: tuple[str, int, int],
    ) -> list[dict[str, Any]]:
        """Return what the insights change: updates and merges, then additions, then a deletion.

        Args:
            user: The request, for its sections.
            playbook: The playbook in it.
            lessons: The line of each lesson that was read, by key.
            platitude: What a crowded curator adds; ``None`` for one that is not crowded.
            place: What identifies the call.
        """
        sections = _list_at(user, _SECTIONS)
        section = next(
            (name for name in sections if "formula" in name.lower()),
            sections[0] if sections else "",
        )
        matched = (_BULLET.match(line) for line in playbook.splitlines())
        bullets = [(match[1], match[2], set(self._keys_of(match[2]))) for match in matched if match]
        changes, fresh = [], []
        for key, line in lessons.items():
            stating = [(name, content) for name, content, keys in bullets if keys == {key}]
            if len(stating) > 1:
                changes.append(
                    {"op": "MERGE", "ids": [name for name, _ in stating], "content": line}
                )
            elif stating and stating[0][1] != line:
                changes.append({"op": "UPDATE", "ids": [stating[0][0]], "content": line})
            elif not any(key in keys for _, _, keys in bullets):
                fresh.append(key)
        written = self._capacity.write((), tuple(fresh), self._seed, *place)
        added = [self._worded(key, lessons[key], place) for key in written]
        empty = [name for name, content, _ in bullets if content == PLATITUDE]
        if platitude is not None and not empty:
            added.append(platitude)
        deleted = [{"op": "DELETE", "ids": [name]} for name in empty] if platitude is None else []
        return [
            *changes,
            *({"op": "ADD", "section": section, "content": line} for line in added),
            *deleted,
        ]

    def _worded(self, key: str, line: str, place: tuple[str, int, int]) -> str:
        words = line.split()
        brief = uniform(self._seed, "brief", key, *place) < _BRIEF
        # The key is the first word: a lesson without it would be none.
        return " ".join(words[: max(2, len(words) // 2)]) if brief else line


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
    start = header.search(user)
    if not start:
        return []
    try:
        value = json.JSONDecoder().raw_decode(user, start.end())[0]
    except (ValueError, RecursionError):
        return re.findall(
            r"^\[\d+\] «(.*?)»$", user[start.end() :].split("[[ ##", 1)[0], re.MULTILINE
        )
    return [str(item) for item in value] if isinstance(value, list) else []
