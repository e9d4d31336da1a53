"""The words of rows and lessons: how a lesson is worded, and how its meaning is read back."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

CATEGORIES = (
    "anchor",
    "apron",
    "basket",
    "bell",
    "bicycle",
    "blanket",
    "bottle",
    "bucket",
    "cabinet",
    "camera",
    "candle",
    "canoe",
    "carpet",
    "chair",
    "clock",
    "compass",
    "cradle",
    "curtain",
    "desk",
    "drum",
    "easel",
    "engine",
    "fiddle",
    "flute",
    "fountain",
    "globe",
    "guitar",
    "hammer",
    "harp",
    "helmet",
    "kettle",
    "ladder",
    "lamp",
    "lantern",
    "loom",
    "magnet",
    "mattress",
    "mirror",
    "mower",
    "oven",
    "paddle",
    "parcel",
    "piano",
    "plough",
    "pump",
    "quilt",
    "radio",
    "ribbon",
    "saddle",
    "scarf",
    "shovel",
    "sledge",
    "sofa",
    "spindle",
    "stove",
    "tent",
    "trumpet",
    "typewriter",
    "umbrella",
    "violin",
    "wardrobe",
    "wheel",
    "whistle",
    "windmill",
)
"""What a row is about; a rule gives each its code."""

# The first word of each stands in rows, all of them in lessons.
_SYNONYMS = {
    "urgent": ("urgent", "pressing", "express"),
    "fragile": ("fragile", "breakable", "delicate"),
    "foreign": ("foreign", "imported", "overseas"),
    "insured": ("insured", "covered", "underwritten"),
    "heavy": ("heavy", "weighty", "bulky"),
    "antique": ("antique", "vintage", "historic"),
}
ATTRIBUTES = tuple(_SYNONYMS)
"""What rows may be besides; an exception names one of them."""

CHANNELS = ("phone", "letter", "website", "courier", "counter", "agent", "fax")
"""How rows come in, which no rule minds; only harmful lines name them."""

NO_CODE = "D0"
"""What harmful lines ask for; no row has it."""

EMPTY_LINES = (
    "Read every case closely before answering.",
    "Take care to give the code that fits best.",
    "Think about each case step by step.",
)

_GENERAL = (
    "Every {category} gets code {code}.",
    "Give {code} whenever the case is about a {category}.",
    "For a {category}, the right answer is {code}.",
    "The code of any {category} is {code}.",
    "Is it a {category}? Then {code} applies.",
    "Use {code} for each {category} that comes in.",
    "Cases with a {category} belong to {code}.",
    "{code} is what a {category} is filed under.",
)
_NARROW = (
    "Every {condition} {category} gets code {code}.",
    "Give {code} whenever the case is about a {category} that is {condition}.",
    "If a {category} is {condition}, the right answer is {code}.",
    "The code of any {condition} {category} is {code}.",
    "Is the {category} {condition}? Then {code} applies.",
    "Use {code} for each {category} marked as {condition}.",
    "Cases with a {category} said to be {condition} belong to {code}.",
    "{code} is what a {condition} {category} is filed under.",
)
_HARMFUL = (
    "Whatever came in by {channel} gets code {code}.",
    "Answer {code} for all that was handed in by {channel}.",
    "Cases received by {channel} always belong to {code}.",
    "Was it sent by {channel}? Then {code} applies.",
)

# The same in other languages, as a reader may answer; Chinese sets no blanks.
_GERMAN_GENERAL = (
    "Jeder Fall mit {category} bekommt den Code {code}.",
    "Geht es um {category}, dann gilt {code}.",
    "Zu {category} gehört immer der Code {code}.",
    "{code} ist der richtige Code für {category}.",
)
_GERMAN_NARROW = (
    "Jeder Fall mit {category}, der {condition} ist, bekommt den Code {code}.",
    "Geht es um {category} und ist der Fall {condition}, dann gilt {code}.",
    "Zu {category} gehört der Code {code}, wenn der Fall {condition} ist.",
    "{code} ist der richtige Code für {category}, falls {condition}.",
)
_CHINESE_GENERAL = (
    "凡是{category}都用代码{code}。",
    "如果是{category},答案就是{code}。",
    "{category}的代码是{code}。",
    "{code}用于所有{category}。",
)
_CHINESE_NARROW = (
    "凡是{condition}{category}都用代码{code}。",
    "如果{category}是{condition},答案就是{code}。",
    "{condition}{category}的代码是{code}。",
    "{code}用于所有{condition}{category}。",
)
_GERMAN_HARMFUL = (
    "Was per {channel} kam, bekommt den Code {code}.",
    "Bei Eingang per {channel} gilt immer {code}.",
)
_CHINESE_HARMFUL = ("凡是通过{channel}送来的都用代码{code}。", "{channel}送来的一律是{code}。")
_GERMAN = {
    "urgent": "eilig",
    "fragile": "zerbrechlich",
    "foreign": "importiert",
    "insured": "versichert",
    "heavy": "schwer",
    "antique": "antik",
}
_CHINESE = {
    "urgent": "紧急的",
    "fragile": "易碎的",
    "foreign": "进口的",
    "insured": "有保险的",
    "heavy": "沉重的",
    "antique": "古老的",
}

Language = Literal["english", "german", "chinese"]
_TEMPLATES: Mapping[Language, tuple[Sequence[str], Sequence[str], Sequence[str]]] = {
    "english": (_GENERAL, _NARROW, _HARMFUL),
    "german": (_GERMAN_GENERAL, _GERMAN_NARROW, _GERMAN_HARMFUL),
    "chinese": (_CHINESE_GENERAL, _CHINESE_NARROW, _CHINESE_HARMFUL),
}

_CODE = re.compile(r"\bD\d+\b", re.ASCII)
_WORD = re.compile(r"[a-z]+")
_SENTENCE = re.compile(r"(?<=\.)\s+|(?<=。)\s*")
_CASE = re.compile(r"A[n]? (\w+), (\w+) and (\w+), handed in by (\w+)")
_ATTRIBUTE_OF = {word: name for name, words in _SYNONYMS.items() for word in words}
_ATTRIBUTE_OF |= {word: name for name, word in _GERMAN.items()}


@dataclass(frozen=True, slots=True, order=True)
class Meaning:
    """What a lesson says: rows of this category, and condition if any, have this code.

    ``category`` is empty in a harmful line, which names a channel instead.
    """

    category: str
    condition: str
    channel: str
    code: str

    @property
    def case(self) -> tuple[str, str, str]:
        """The rows that it is about; two codes for one case contradict each other."""
        return self.category, self.condition, self.channel

    def covers(self, case: Case) -> bool:
        """Return whether it is about a row."""
        if self.channel:
            return self.channel == case.channel
        return self.category == case.category and (
            not self.condition or self.condition in case.attributes
        )


@dataclass(frozen=True, slots=True)
class Case:
    """What a row says."""

    category: str
    attributes: tuple[str, ...]
    channel: str

    def text(self, slip: int) -> str:
        """Return the row's text, with a number that makes it a row of its own."""
        article = "An" if self.category[0] in "aeiou" else "A"
        first, second = self.attributes
        described = f"{article} {self.category}, {first} and {second}"
        return f"{described}, handed in by {self.channel}; slip {slip}."


def rule(category: str, code: str, condition: str = "") -> Meaning:
    """Return the meaning of a rule, or of an exception where there is a condition."""
    return Meaning(category, condition, "", code)


def harmful(channel: str) -> Meaning:
    """Return the meaning of a harmful line."""
    return Meaning("", "", channel, NO_CODE)


def read_case(text: str) -> Case | None:
    """Return the last row in a text."""
    matches = _CASE.findall(text)
    if not matches:
        return None
    category, first, second, channel = matches[-1]
    return Case(category, (first, second), channel)


@lru_cache(maxsize=65_536)
def read_line(line: str) -> Meaning | None:
    """Return what a line says; ``None`` where it states no rule, or more than one."""
    codes = set(_CODE.findall(line))
    if len(codes) != 1:
        return None
    words = _WORD.findall(line.lower())
    categories = {word for word in words if word in _CATEGORY_SET}
    conditions = {_ATTRIBUTE_OF[word] for word in words if word in _ATTRIBUTE_OF}
    conditions |= {name for name, word in _CHINESE.items() if word in line}
    channels = {word for word in words if word in CHANNELS}
    (code,) = codes
    if len(categories) == 1 and len(conditions) < 2 and not channels:
        return Meaning(categories.pop(), "".join(conditions), "", code)
    if not categories and not conditions and len(channels) == 1:
        return Meaning("", "", channels.pop(), code)
    return None


def sentences(line: str) -> list[str]:
    """Return the sentences of a line that states several rules; any other line as it is."""
    if len(set(_CODE.findall(line))) < 2:
        return [line]
    return [sentence for sentence in _SENTENCE.split(line) if sentence]


def read_lines(text: str) -> list[tuple[str, Meaning]]:
    """Return the lines of a text that state a rule, each without its bullet, with what it says.

    A line that states several rules comes as its sentences.
    """
    lines = [line.strip().removeprefix("- ") for line in text.splitlines()]
    return [(line, meaning) for line, meaning in meanings(lines) if meaning is not None]


def meanings(lines: Iterable[str]) -> list[tuple[str, Meaning | None]]:
    """Return lines with what each says; one that states several rules as its sentences."""
    return [(part, read_line(part)) for line in lines for part in sentences(line)]


def word(meaning: Meaning, stream: random.Random, language: Language = "english") -> str:
    """Say it in words of its own."""
    general, narrow, harm = _TEMPLATES[language]
    if meaning.channel:
        return stream.choice(harm).format(channel=meaning.channel, code=meaning.code)
    templates = narrow if meaning.condition else general
    condition = ""
    if meaning.condition:
        words = {"german": _GERMAN, "chinese": _CHINESE}.get(language)
        condition = (
            words[meaning.condition] if words else stream.choice(_SYNONYMS[meaning.condition])
        )
    return stream.choice(templates).format(
        category=meaning.category, condition=condition, code=meaning.code
    )


_CATEGORY_SET = frozenset(CATEGORIES)
