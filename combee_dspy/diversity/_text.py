"""What of a candidate is compared: its text, in an order that does not depend on how it is stored."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.operators import decode_demonstrations, decode_fields
from combee_dspy.records import Demonstration
from combee_dspy.reflections import normalised

__all__ = ["Statement", "candidate_text", "fingerprint", "statements", "telling_words"]

_BULLET = re.compile(r"^\s*(?:[-*•+>#]+|\(?\d{1,3}[.):])\s+")
_SENTENCE_END = re.compile(r"(?<=[.!?;])(?<!e\.g\.)(?<!i\.e\.)(?<!\bvs\.)(?<!\bcf\.)\s+|(?<=[。！？])")
_COMPONENT = "[component "
_DEMONSTRATIONS = '{"demonstrations":'
_FIELDS = '{"fields":'
_MARK = "[example]"
_NEGATIONS = frozenset(
    ["no", "not", "never", "none", "nor", "cannot", "dont", "doesnt", "isnt", "arent", "wont", "shouldnt", "mustnt"]
) | {"avoid"}
_NUMBER_WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
_NUMBERS = {word: str(number) for number, word in enumerate(_NUMBER_WORDS)}
_NOT = "not"
_OPERATORS = frozenset("=+*/^<>≤≥×÷−") | {"!="}
_UNITS = frozenset("%$€£")
# Candidates share most of their lines, and each is compared many times.
_REMEMBERED = 4096


def candidate_text(components: Mapping[str, str]) -> str:
    """Return a candidate as one text for comparison: a line that names each component, then what it says.

    Components stand in the order of their names, and demonstrations and field
    descriptions one a line, sorted: two candidates that show the same examples
    in another order have the same text, since dealing the same hand again finds
    nothing new. Lines of instructions keep their order.

    Args:
        components: Text per component as gepa knows it, encoded demonstrations
            and field descriptions among them (see :func:`combee_dspy.operators.encode_demonstrations`).
    """
    names = sorted(components)
    return "\n".join(f"{_COMPONENT}{' '.join(name.split())}]\n{_rendered(components[name])}" for name in names)


def _rendered(text: str) -> str:
    try:
        if text.startswith(_DEMONSTRATIONS):
            return "\n".join(sorted(_line(demonstration) for demonstration in decode_demonstrations(text)))
        if text.startswith(_FIELDS):
            described = decode_fields(text)
            return "\n".join(f"{name}: {line}" for name in sorted(described) for line in described[name].splitlines())
    except ArgumentValueError:
        pass  # An instruction may look like anything; it is compared as it stands.
    return text


def _line(demonstration: Demonstration) -> str:
    fields = [*sorted(demonstration.inputs.items()), *sorted(demonstration.outputs.items())]
    return f"{_MARK} " + "; ".join(f"{name}: {_shown(value)}" for name, value in fields)


def _shown(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False)
    return " ".join(text.split())


@dataclass(frozen=True, slots=True)
class Statement:
    """One thing that a candidate says.

    Attributes:
        component: Where it says so: the component's name, ``""`` in a text without components.
        form: Its words, numbers and operators in lower case. What differs in punctuation,
            case, white space or the sign of a bullet has one form.
    """

    component: str
    form: str


def statements(text: str) -> dict[Statement, str]:
    """Return the statements of a text, each with its words as written, in the order of their first appearance.

    A statement is a sentence, a bullet's sentence, or a demonstration as
    :func:`candidate_text` writes it. The same sentence in two components makes two:
    content that was moved is a change.
    """
    found: dict[Statement, str] = {}
    component = ""
    for line in text.splitlines():
        if line.startswith(_COMPONENT) and line.endswith("]"):
            component = line[len(_COMPONENT) : -1]
            continue
        for form, sentence in _sentences(line):
            found.setdefault(Statement(component, form), sentence)
    return found


@lru_cache(maxsize=_REMEMBERED)
def _sentences(line: str) -> tuple[tuple[str, str], ...]:
    shown = _BULLET.sub("", line).strip()
    parts = [shown] if shown.startswith(_MARK) else _SENTENCE_END.split(shown)
    forms = ((normalised(part), part) for part in parts)
    return tuple((form, part) for form, part in forms if form)


@lru_cache(maxsize=_REMEMBERED)
def telling_words(form: str) -> frozenset[str]:
    """Return what of a normal form changes its meaning however alike the rest looks.

    Its numbers, formulas and units, and a negation: embedders place "round to
    two decimals" beside "round to four decimals", a / b beside b / a, and "use"
    beside "do not use". Numbers up to ten count in words too; all negations are one.
    """
    words = form.split()
    found = set()
    for number, word in enumerate(words):
        if word in _NEGATIONS:
            found.add(_NOT)
        elif word in _NUMBERS:
            found.add(_NUMBERS[word])
        elif word in _OPERATORS:
            found.add(" ".join(words[max(number - 1, 0) : number + 2]))
        elif word in _UNITS or any(character.isdigit() for character in word):
            found.add(word)
    return frozenset(found)


def fingerprint(text: str) -> str:
    """Return 32 hex digits that are equal for texts with the same statements in the same order."""
    found = "\n".join(f"{statement.component}\t{statement.form}" for statement in statements(text))
    return hashlib.blake2b(found.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
