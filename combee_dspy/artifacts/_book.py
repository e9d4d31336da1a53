"""A playbook's content: sections of bullets, as frozen values and as ACE's lines of text, and what changes it. Pure."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.reflections import NearDuplicates, estimate_tokens, normalised

Op = Literal["ADD", "UPDATE", "MERGE", "DELETE"]

SECTIONS = ("STRATEGIES", "FORMULAS AND DEFINITIONS", "FORMATS", "COMMON MISTAKES", "OTHER")
"""Sections of a playbook that nobody has named any for. The last one takes what fits nowhere else."""

_ID = re.compile(r"[^\s\[\]]{1,64}")
_SLUG = re.compile(r"[^a-z0-9]+")
_LINE = re.compile(r"\[([^\s\[\]]{1,64})\] helpful=(\d{1,9}) harmful=(\d{1,9}) ::(?: (.*))?", re.DOTALL)
_HEADING = re.compile(r"## +(\S.*?)\s*")
_MORE = "    "
_UNNAMED = "OTHER"
# Of two deltas that want the same bullet, the one that keeps more of it goes first.
_RANK: dict[str, int] = {"MERGE": 0, "UPDATE": 1, "DELETE": 2}


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
class BulletBook:
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

    def counted(self, helpful: Mapping[str, int], harmful: Mapping[str, int]) -> BulletBook:
        """Return the book with more on its bullets' counters. Ids that it does not hold change nothing."""
        more = [(one, helpful.get(one.id, 0), harmful.get(one.id, 0)) for one in self.bullets]
        counted = [replace(one, helpful=one.helpful + up, harmful=one.harmful + down) for one, up, down in more]
        return BulletBook(tuple(counted), self.sections)


@dataclass(frozen=True, slots=True)
class ReadText:
    """What a text holds: a playbook, and what is neither section nor bullet, one sentence each."""

    book: BulletBook
    ignored: tuple[str, ...] = ()


def _own_id(section: str, content: str) -> str:
    """Return the id of a bullet that is added: it follows from what it says, so adding it again adds nothing.

    The section gives the readable part before the dash, the content, whatever its case and punctuation, the eight hex
    digits behind it.
    """
    words = [word for word in _SLUG.split(section.casefold()) if word]
    said = normalised(content) or content
    digest = hashlib.sha256(said.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{words[0][:4] if words else 'note'}-{digest}"


def write_text(book: BulletBook) -> str:
    """Return a whole playbook as text that :func:`read_text` reads back, empty sections included."""
    return _text(book.sections, book.bullets)


def render(book: BulletBook, max_tokens: int) -> tuple[str, tuple[Bullet, ...]]:
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
    contents: dict[str, list[str]] = {}
    ignored: list[str] = []
    current, last = "", ""
    if text.partition("\n")[0].endswith("\r"):
        # No text of ours begins so: a section's name ends with no space.
        text = text.replace("\r\n", "\n")
    for number, line in enumerate(text.split("\n"), start=1):
        heading, found = _HEADING.fullmatch(line), _LINE.fullmatch(line)
        if last and (line.startswith(_MORE) or (line.strip() and not heading and not found)):
            contents[last].append(line.removeprefix(_MORE))
        elif heading:
            current, last = heading[1], ""
            sections += [current] * (current not in sections)
        elif found:
            current = current or _UNNAMED
            sections += [current] * (current not in sections)
            name, last = found[1], "" if found[1] in bullets else found[1]
            if not last:
                ignored.append(f"line {number}: the id {name!r} stands twice, the first bullet is kept")
            bullets.setdefault(name, Bullet(name, current, "", int(found[2]), int(found[3])))
            contents.setdefault(name, [found[4] or ""])
        elif not line.strip():
            last = ""
        else:
            ignored.append(f"line {number} is neither a section nor a bullet: {line[:80]!r}")
    read = tuple(replace(one, content="\n".join(contents[name])) for name, one in bullets.items())
    return ReadText(BulletBook(read, tuple(sections or [_UNNAMED])), tuple(ignored))


@dataclass(frozen=True, slots=True)
class Delta:
    """One change to a playbook.

    Attributes:
        op: ``ADD`` takes a section and a content, ``UPDATE`` one id and a content, ``MERGE`` two ids or more and a
            content, ``DELETE`` one id.
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

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON data that :meth:`from_json` reads back."""
        return {**asdict(self), "ids": list(self.ids)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Delta:
        """Read what :meth:`to_json` returned."""
        return cls(**data)


@dataclass(frozen=True, slots=True)
class Applied:
    """A playbook after a change, and one sentence for each delta that was not done or bullet that refining took out."""

    book: BulletBook
    notes: tuple[str, ...] = ()


def apply_deltas(book: BulletBook, deltas: Iterable[Delta]) -> Applied:
    """Apply deltas to a playbook; their order does not matter, and applying them again changes nothing.

    Additions come first and stand behind what is there, by their ids: an id follows from what the bullet says, so the
    same advice is added once. Then each bullet takes one change. Where several deltas want the same bullet, the one
    that most of the given deltas agree on wins; among those, ``MERGE`` before ``UPDATE`` before ``DELETE``, which keeps
    the most; among those, the first by its text. The others are ignored, in full. What lacks a content that it needs
    takes part in nothing. Which deltas are in conflict is decided on the deltas alone.

    A merge keeps the bullet that stands first, with the counters of all of them. What names an unknown bullet is
    ignored; a merge that knows fewer than two of its bullets is too. A section that the playbook lacks stands for its
    last one. No bullet that no delta names is changed.
    """
    support = Counter(deltas)
    blank = sorted((one for one in support if one.op != "DELETE" and not one.content.strip()), key=_order)
    ignored = [f"{delta}: it says nothing" for delta in blank]
    wanted = [delta for delta in support if delta not in blank]
    added: dict[str, Bullet] = {}
    for delta in sorted((one for one in wanted if one.op == "ADD"), key=_order):
        _add(delta, book, added, ignored)
    bullets = {bullet.id: bullet for bullet in (*book.bullets, *(added[one] for one in sorted(added)))}
    claimed: dict[str, Delta] = {}
    for delta in sorted((one for one in wanted if one.op != "ADD"), key=lambda one: (-support[one], *_order(one))):
        taken = next((claimed[one] for one in delta.ids if one in claimed), None)
        if taken is not None:
            ignored.append(f"{delta}: {taken} names the same bullet and goes first")
            continue
        claimed.update(dict.fromkeys(delta.ids, delta))
        _change(delta, bullets, ignored)
    return Applied(BulletBook(tuple(bullets.values()), book.sections), tuple(ignored))


def _order(delta: Delta) -> tuple[int, tuple[str, ...], str, str]:
    return (_RANK.get(delta.op, -1), delta.ids, delta.section, delta.content)


def _add(delta: Delta, book: BulletBook, added: dict[str, Bullet], ignored: list[str]) -> None:
    asked = delta.section.strip()
    section = next((name for name in book.sections if name.casefold() == asked.casefold()), book.sections[-1])
    if asked and section.casefold() != asked.casefold():
        ignored.append(f"{delta}: there is no section {asked[:80]!r}, it stands in {section!r}")
    found = _own_id(section, delta.content)
    # The digits tell what it says; the part before them only where it was filed.
    digits = found.rpartition("-")[2]
    known = (*(bullet.id for bullet in book.bullets), *added)
    same = next((one for one in known if one == found or one.rpartition("-")[2] == digits), None)
    if same is None:
        added[found] = Bullet(found, section, delta.content.strip("\n"))
    else:
        ignored.append(f"{delta}: {same} says or said it already")


def _change(delta: Delta, bullets: dict[str, Bullet], ignored: list[str]) -> None:
    merged = [bullet for bullet in bullets.values() if bullet.id in delta.ids]
    if len(merged) < (2 if delta.op == "MERGE" else 1):
        unknown = ", ".join(one for one in delta.ids if one not in bullets) or "no bullet"
        ignored.append(f"{delta}: it names {unknown}, which the playbook does not hold")
        return
    for bullet in merged if delta.op == "DELETE" else merged[1:]:
        del bullets[bullet.id]
    if delta.op != "DELETE":
        bullets[merged[0].id] = _joint(delta.content, *merged)


def _joint(content: str, first: Bullet, *others: Bullet) -> Bullet:
    """Return the first bullet with this content and the counters of all."""
    helpful = first.helpful + sum(one.helpful for one in others)
    return replace(first, content=content, helpful=helpful, harmful=first.harmful + sum(one.harmful for one in others))


def refine(book: BulletBook, *, similarity: float = 0.8, leave_at: int = 3) -> Applied:
    """Join near-duplicates and let harmful bullets go. Refining again changes nothing.

    Of near-duplicates (see :class:`combee_dspy.reflections.NearDuplicates`) the one that stands first keeps its id and
    place. It takes over the longest wording, which says at least as much, and the sum of the counters. A bullet whose
    harmful count exceeds its helpful count by ``leave_at`` leaves; below that it stands last in its section.
    """
    notes: list[str] = []
    joined = True
    # A longer wording may be near a third bullet, and sums may harm: until nothing changes any more.
    while joined:
        joined = False
        known = NearDuplicates(similarity)
        kept: dict[int, Bullet] = {}
        notes += [f"{one.id} left: it harms more than it helps" for one in book.bullets if -one.value >= leave_at]
        for bullet in book.bullets:
            if -bullet.value >= leave_at:
                continue
            place = known.place(bullet.content)
            if first := kept.get(place):
                joined = True
                notes.append(f"{bullet.id} was joined into {first.id}: they say the same")
                bullet = _joint(max(first.content, bullet.content, key=len), first, bullet)
            kept[place] = bullet
        book = BulletBook(tuple(kept.values()), book.sections)
    return Applied(book, tuple(notes))
