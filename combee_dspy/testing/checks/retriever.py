"""Checks for retrievers: texts in, positions of those that are nearest to a query out."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from combee_dspy.memory import Retriever
from combee_dspy.testing._kit import attempt, expect

_TEXTS = (
    "Letters abroad take code L2 and a customs form.",
    "Parcels from the north take code N7.",
    "Pakete aus dem Süden bekommen Code S4.",
    "北からの小包はコード七。",
)
_ODD = ("", " \n\t ", "😀", "a\x00b", "parcel " * 4000, "code", "小包")
_MEND = "any text can come from a user: empty, long, in any script"


def _look_up(strategy: Retriever, texts: Sequence[str], query: str, most: int) -> list[int]:
    places: Any = attempt(
        lambda: list(strategy.index(texts)(query, most)), f"positions for {query[:40]!r}", _MEND
    )
    right = all(isinstance(place, int) and 0 <= place < len(texts) for place in places)
    expect(right, f"positions below {len(texts)}", f"{places}", "return plain integers")
    return places


def check_finds_at_most_what_is_asked_for(strategy: Retriever) -> None:
    """More lessons than asked for pass the budget of a prompt."""
    for query in (*_TEXTS, *_ODD):
        for texts in ((), _TEXTS[:1], _TEXTS, _ODD):
            for most in (1, 3, 50):
                places = _look_up(strategy, texts, query, most)
                right = len(places) <= most and len(set(places)) == len(places)
                expect(right, f"at most {most} positions, each once", f"{places}")


def check_a_text_is_found_by_its_own_words(strategy: Retriever) -> None:
    """What a query says word for word is nearest to it."""
    for place, text in enumerate(_TEXTS):
        nearest = _look_up(strategy, _TEXTS, text, 2)
        expect(nearest[:1] == [place], f"[{place}] first", f"{nearest}")


def check_a_query_has_one_answer(strategy: Retriever) -> None:
    """A resumed or replayed run must show the same lessons, whichever thread asks."""
    queries = [*_TEXTS, "Which code for parcels?", *_ODD]
    alone = [_look_up(strategy, _TEXTS, query, 3) for query in queries]
    lookup = strategy.index(list(_TEXTS))
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda query: list(lookup(query, 3)), queries[::-1]))[::-1]
    mend = "keep nothing between lookups; order equal ones by position"
    expect(alone == together, f"{alone}", f"{together}", mend)
