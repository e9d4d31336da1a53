"""What readers of numbered lessons say, as edits of a book: checked, never trusted. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

from combee_dspy.lessons import BookEdit, Contradict, Narrow, Retire, Unite, word_vectors
from combee_dspy.reflections import normalised

__all__ = ["Relations", "common_words", "read_relations"]

# So many opinions on one question are none.
_MOST_OPINIONS = 12
# A group that takes in most of a call is believed where its texts are as like as paraphrases are.
_MOST_SHARE = 0.5
_FEW = 6
_COMMON = 0.2
_PARAPHRASE = 0.3
EMPTY = "it tells the assistant nothing that it could do"


@dataclass(frozen=True, slots=True)
class Relations:
    """What one answer says, as edits in the order in which they apply, and what of it is void, a sentence each."""

    edits: tuple[BookEdit, ...] = ()
    void: tuple[str, ...] = ()


def read_relations(
    answer: Mapping[str, object], ids: Sequence[str], texts: Sequence[str], common: Set[str] = frozenset()
) -> Relations:
    """Return the edits in an answer about lessons that were numbered from 1.

    The answer is hostile. A number that no lesson has is void, and so is a group that is left with one lesson. Where
    more is void than valid, or an answer asks for what would empty the book, all of it is void.

    Args:
        answer: What the LM returned by output field of ``RelateLessons``; anything may stand there.
        ids: Ids of the lessons that were shown.
        texts: Their texts.
        common: Words that tell no subject (:func:`common_words`).
    """
    void: list[str] = []
    groups = {name: _groups(answer.get(name), len(ids), name, void) for name in ("same", "contradictory", "narrower")}
    useless = next(iter(_groups([answer.get("empty")], len(ids), "empty", void)), ())
    asked = sum(map(len, groups.values())) + len(useless)
    if len(void) > max(asked, 1):
        return Relations(void=(f"all of an answer: {len(void)} of its parts name no lessons",))
    if asked > 3 * len(ids):
        return Relations(void=(f"all of an answer: {asked} relations among {len(ids)} lessons",))
    subjects = [set(normalised(text).split()) - common for text in texts]
    edits: list[BookEdit] = []
    for group in groups["same"]:
        if _is_coherent(group, texts):
            edits.append(Unite(tuple(ids[number] for number in group)))
        else:
            void.append(f"same: {len(group)} of {len(ids)} lessons that share few words")
    for pair in groups["narrower"]:
        if len(pair) == 2 and _share_subject(pair, subjects):
            edits.append(Narrow(ids[pair[0]], ids[pair[1]]))
        else:
            void.append("narrower: no pair of lessons about one thing")
    for group in groups["contradictory"]:
        if len(group) <= _MOST_OPINIONS and _share_subject(group, subjects):
            edits.append(Contradict(tuple(ids[number] for number in group)))
        else:
            void.append(f"contradictory: {len(group)} of {len(ids)} lessons, not about one thing")
    if len(useless) > _MOST_SHARE * len(ids):
        void.append(f"empty: {len(useless)} of {len(ids)} lessons")
    else:
        edits += [Retire(ids[number], EMPTY) for number in useless]
    return Relations(tuple(edits), tuple(void))


def _groups(value: object, lessons: int, name: str, void: list[str]) -> list[tuple[int, ...]]:
    """Return groups of positions from 0, each position once a group and each group once."""
    groups: dict[tuple[int, ...], None] = {}
    for item in value if isinstance(value, (list, tuple)) else ():
        if not isinstance(item, (list, tuple)):
            void.append(f"{name}: {item!r:.40} is no list of numbers")
            continue
        numbers = list(dict.fromkeys(number for number in item if _is_number(number)))
        valid = tuple(number - 1 for number in numbers if 1 <= number <= lessons)
        if len(valid) < len(item):
            void.append(f"{name}: {len(item) - len(valid)} numbers that no lesson has, or that repeat")
        if len(valid) > (name != "empty"):
            groups.setdefault(valid)
    return list(groups)


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def common_words(texts: Sequence[str]) -> frozenset[str]:
    """Return the words that so many texts hold that they tell no subject."""
    holders = Counter(word for text in texts for word in set(normalised(text).split()))
    return frozenset(word for word, count in holders.items() if count > max(_FEW, _COMMON * len(texts)))


def _share_subject(group: Sequence[int], subjects: Sequence[set[str]]) -> bool:
    """Return whether lessons may hold in the same cases: each shares a word with the first that tells a subject."""
    return all(subjects[group[0]] & subjects[member] for member in group[1:])


def _is_coherent(group: Iterable[int], texts: Sequence[str]) -> bool:
    """Return whether a group may be about one thing: small, or of texts that share words."""
    members = list(group)
    if len(members) <= max(_FEW, _MOST_SHARE * len(texts)):
        return True
    vectors = word_vectors([texts[member] for member in members])
    likeness = (vectors[1:] @ vectors[0].T).toarray()
    return bool(likeness.mean() >= _PARAPHRASE)
