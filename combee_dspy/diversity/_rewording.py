"""Trivial rewordings of lessons, made by rules: what a collapsed proposer writes again and again."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

__all__ = ["reworded"]

_SYNONYMS = {
    "divide": "calculate by dividing",
    "round": "always round",
    "give": "provide",
    "write": "output",
    "use": "apply",
    "check": "verify",
    "read": "carefully read",
    "look": "search",
    "keep": "preserve",
    "return": "produce",
    "belongs to": "should go to",
    "belong to": "should go to",
    "result": "final result",
    "before": "prior to",
    "only": "solely",
    "must be": "have to be",
    "if": "in case",
    "when": "whenever",
    "do not": "don't",
    "exactly": "precisely",
    "several": "multiple",
    "revenue": "total revenue",
    "subtract": "deduct",
    "say": "state",
    "answer": "reply",
    "find": "locate",
    "ask": "query",
    "fetch": "retrieve",
    "stop": "halt",
    "figure": "number",
    "figures": "numbers",
}
_OPENINGS = ("Remember: ", "Note that ", "Important: ", "Always remember: ", "Make sure of this: ", "Be careful: ")
_CLOSINGS = (" in every case", ", without exception", " every time", " at all times", " when you answer")
_FINAL = re.compile(r"[.!]*\Z")


def _synonyms(text: str, stream: random.Random) -> str:
    present = [word for word in _SYNONYMS if re.search(rf"\b{re.escape(word)}\b", text, re.IGNORECASE)]
    chosen = stream.sample(present, min(len(present), stream.randint(1, 2)))
    for word in chosen:
        text = re.sub(rf"\b{re.escape(word)}\b", _like_case(_SYNONYMS[word]), text, count=1, flags=re.IGNORECASE)
    return text


def _like_case(new: str) -> Callable[[re.Match[str]], str]:
    return lambda found: new[:1].upper() + new[1:] if found[0][:1].isupper() else new


def _opening(text: str, stream: random.Random) -> str:
    return stream.choice(_OPENINGS) + text[:1].lower() + text[1:]


def _closing(text: str, stream: random.Random) -> str:
    return _FINAL.sub("", text, count=1) + stream.choice(_CLOSINGS) + "."


def _clauses(text: str, stream: random.Random) -> str:
    head, comma, tail = text.partition(", ")
    if not comma or ", " in tail:
        return text
    tail = _FINAL.sub("", tail, count=1)
    return f"{tail[:1].upper()}{tail[1:]} {head[:1].lower()}{head[1:]}."


def _marks(text: str, stream: random.Random) -> str:
    return stream.choice(
        (text.upper(), f"**{text}**", _FINAL.sub("!", text, count=1), _FINAL.sub("", text, count=1), f'"{text}"')
    )


_RULES: tuple[Callable[[str, random.Random], str], ...] = (_clauses, _synonyms, _closing, _opening, _marks)


def reworded(text: str, stream: random.Random) -> str:
    """Return a text that says the same in nearly the same words, by one to three rules drawn from the stream.

    Rules: one or two synonyms, an opening ("Remember: "), a closing (" every
    time"), the clauses in the other order, other punctuation or case.
    """
    chosen = stream.sample(range(len(_RULES)), stream.choice((1, 1, 2, 3)))
    # In the order of the rules: an opening stays in front of whatever the others did.
    for number in sorted(chosen):
        text = _RULES[number](text, stream)
    return text
