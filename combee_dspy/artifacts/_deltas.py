"""Deltas: what a curator asks for, and what code makes of it. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from combee_dspy.artifacts._playbook import Bullet, Playbook, ordered, own_id

__all__ = ["Applied", "Delta", "Op", "apply_deltas"]

Op = Literal["ADD", "UPDATE", "MERGE", "DELETE"]

# Of two deltas that want the same bullet, the one that keeps more of it goes first.
_RANK: dict[str, int] = {"MERGE": 0, "UPDATE": 1, "DELETE": 2}


@dataclass(frozen=True, slots=True)
class Delta:
    """One change to a playbook.

    Attributes:
        op: ``ADD`` takes a section and a content, ``UPDATE`` one id and a content, ``MERGE``
            two ids or more and a content, ``DELETE`` one id.
        ids: The bullets it is about, ascending, each once; none for ``ADD``.
        section: Where a bullet is added.
        content: What the bullet says from now on.
    """

    op: Op
    ids: tuple[str, ...] = ()
    section: str = ""
    content: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "ids", tuple(sorted(set(self.ids))))

    def __str__(self) -> str:
        named = f" {', '.join(self.ids)}" if self.ids else ""
        said = f": {self.content[:80]}" if self.content else ""
        return f"{self.op}{named}{said}"


@dataclass(frozen=True, slots=True)
class Applied:
    """A playbook after deltas.

    Attributes:
        playbook: The playbook.
        done: How many deltas of each kind changed it.
        ignored: What was not done and why, one sentence each, in a stated order.
    """

    playbook: Playbook
    done: dict[str, int]
    ignored: tuple[str, ...] = ()


def apply_deltas(playbook: Playbook, deltas: Iterable[Delta]) -> Applied:
    """Apply deltas to a playbook; their order does not matter, and applying them again changes nothing.

    Additions come first: a bullet's id follows from what it says, so the same advice is added
    once. Then each bullet takes one change. Where several deltas want the same bullet, the one
    that most of the given deltas agree on wins; among those, ``MERGE`` before ``UPDATE`` before
    ``DELETE``, which keeps the most; among those, the first by its text. The others are ignored,
    in full. What lacks a content that it needs takes part in nothing. Which deltas are in conflict
    is decided on the deltas alone.

    A merge keeps the bullet that stands first, with the counters of all of them. What names an
    unknown bullet is ignored; a merge that knows fewer than two of its bullets is too.
    A section that the playbook lacks stands for its last one.

    Args:
        playbook: The playbook; no bullet that no delta names is changed.
        deltas: In any order, repetitions included.
    """
    support = Counter(deltas)
    bullets = {bullet.id: bullet for bullet in playbook.bullets}
    done: Counter[str] = Counter()
    ignored: list[str] = []
    additions = sorted((delta for delta in support if delta.op == "ADD"), key=_text)
    for delta in additions:
        _add(delta, playbook.sections, bullets, done, ignored)
    claimed: dict[str, Delta] = {}
    changes = sorted((delta for delta in support if delta.op != "ADD"), key=lambda one: (-support[one], *_text(one)))
    for delta in changes:
        if delta.op != "DELETE" and not delta.content.strip():
            ignored.append(f"{delta}: it says nothing")
            continue
        taken = next((claimed[one] for one in delta.ids if one in claimed), None)
        if taken is not None:
            ignored.append(f"{delta}: {taken} names the same bullet and goes first")
            continue
        claimed.update(dict.fromkeys(delta.ids, delta))
        _change(delta, bullets, done, ignored)
    return Applied(ordered(bullets.values(), playbook.sections), dict(done), tuple(ignored))


def _text(delta: Delta) -> tuple[int, tuple[str, ...], str, str]:
    return (_RANK.get(delta.op, -1), delta.ids, delta.section, delta.content)


def _add(
    delta: Delta, sections: tuple[str, ...], bullets: dict[str, Bullet], done: Counter[str], ignored: list[str]
) -> None:
    if not delta.content.strip():
        ignored.append(f"{delta}: it says nothing")
        return
    section = next((name for name in sections if name.casefold() == delta.section.strip().casefold()), None)
    if section is None:
        section = sections[-1]
        if delta.section.strip():
            ignored.append(f"{delta}: there is no section {delta.section.strip()[:80]!r}, it stands in {section!r}")
    found = own_id(section, delta.content)
    # The digits tell what it says; the part before them only where it was filed.
    digits = found.rpartition("-")[2]
    same = next((one for one in bullets if one == found or one.rpartition("-")[2] == digits), None)
    if same is not None:
        ignored.append(f"{delta}: {same} says or said it already")
        return
    bullets[found] = Bullet(found, section, delta.content.strip("\n"))
    done["ADD"] += 1


def _change(delta: Delta, bullets: dict[str, Bullet], done: Counter[str], ignored: list[str]) -> None:
    known = [one for one in delta.ids if one in bullets]
    least = 2 if delta.op == "MERGE" else 1
    if len(known) < least:
        unknown = ", ".join(one for one in delta.ids if one not in bullets) or "no bullet"
        ignored.append(f"{delta}: it names {unknown}, which the playbook does not hold")
        return
    if delta.op == "DELETE":
        del bullets[known[0]]
    elif delta.op == "UPDATE":
        if bullets[known[0]].content == delta.content:
            return
        bullets[known[0]] = replace(bullets[known[0]], content=delta.content)
    else:
        merged = [bullets[one] for one in known]
        kept = min(merged, key=lambda one: (one.place is None, one.place or 0, one.id))
        for bullet in merged:
            del bullets[bullet.id]
        bullets[kept.id] = replace(
            kept,
            content=delta.content,
            helpful=sum(one.helpful for one in merged),
            harmful=sum(one.harmful for one in merged),
        )
    done[delta.op] += 1
