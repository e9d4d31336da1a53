"""Lessons planted on purpose, so that what became of each can be told exactly."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import product

from combee_dspy.records import Reflection
from combee_dspy.reflections import normalised
from combee_dspy.streams import derive
from combee_simulator import SimulatedQuestion, SimulatedTask

__all__ = ["INSTRUCTION", "PlantedFact", "plant", "planted_in", "planted_record", "planted_task"]

INSTRUCTION = "Name the code under which the shipment in the question is filed."
"""The instruction that the planted records were answered under."""

_HEADS = "bel dor fen gar hul jor kel lum mav nor pel quil ros sar tam ulv vor wen yar zel"
_TAILS = "bak dane fik gorn hal ick jon lode mar nix oth pern rus stad tor umb vek wold yx zim"
_WORDINGS = (
    "At the {port} desk, {goods} shipments go under {code}.",
    "{code} is the right code for {goods} that comes from {port}.",
    "Whoever files {goods} out of {port} has to write {code}.",
)
_MOST = 40_000
# Up to here two-part stems are enough; more facts take three-part ones and longer codes.
_FEW = 4_000
_FIRST_CODE = 1_000


@dataclass(frozen=True, slots=True)
class PlantedFact:
    """An invented fact that no model can know: goods from a port have a code.

    ``wrong`` is what was answered instead. No two facts share a word or a code.
    """

    code: str
    goods: str
    port: str
    wrong: str

    @property
    def question(self) -> str:
        """The question that needs the fact."""
        return f"Under which code is a shipment of {self.goods} from {self.port} filed?"

    @property
    def lesson(self) -> str:
        """The fact as one sentence."""
        return f"The {self.port} desk files shipments of {self.goods} under {self.code}."

    @property
    def line(self) -> str:
        """The fact as one line of a list of lessons, marked with its code."""
        return f"[{self.code}] {self.lesson}"


def plant(count: int, seed: int) -> tuple[PlantedFact, ...]:
    """Invent up to 40,000 facts, none of which helps with another."""
    stream = derive(seed, "planted facts")
    few = count <= _FEW
    words = [
        "".join(parts) for parts in product(*[_HEADS.split()] * (2 if few else 3), _TAILS.split())
    ]
    stream.shuffle(words)
    codes = stream.sample(range(_FIRST_CODE, _FIRST_CODE + 2 * (_FEW if few else _MOST)), 2 * count)
    return tuple(
        PlantedFact(f"Q{codes[2 * n]}", words[2 * n], words[2 * n + 1], f"Q{codes[2 * n + 1]}")
        for n in range(count)
    )


def planted_record(fact: PlantedFact, index: int, wording: int = 0) -> Reflection:
    """Return the reflection on a rollout that lacked the fact, which its feedback states.

    Args:
        fact: What it says.
        index: Its place.
        wording: In which words, of three (0, 1 or 2).
    """
    lesson = _WORDINGS[wording].format(port=fact.port, goods=fact.goods, code=fact.code)
    record = {
        "Inputs": {"question": fact.question},
        "Generated Outputs": {"code": fact.wrong},
        "Feedback": f"Wrong: got {fact.wrong}. {lesson}",
    }
    return Reflection(index, record)


def planted_in(facts: Collection[PlantedFact], lines: Iterable[str]) -> frozenset[str]:
    """Return the codes of the facts that the lines hold whole.

    A fact is held where its code and its goods or port stand in one line; a
    list of codes without what they are for holds nothing.
    """
    held: set[str] = set()
    by_code = {fact.code.casefold(): fact for fact in facts}
    for line in lines:
        words = set(normalised(line).replace("-", " ").split())
        for word in words & by_code.keys():
            fact = by_code[word]
            if fact.goods in words or fact.port in words:
                held.add(fact.code)
    return frozenset(held)


def planted_task(facts: Iterable[PlantedFact]) -> SimulatedTask:
    """Return what a simulated service must know to learn the facts."""
    questions = (
        SimulatedQuestion(fact.question, fact.code, fact.wrong, fact.code, fact.lesson)
        for fact in facts
    )
    return SimulatedTask(tuple(questions), ("code",), base_rate=0.0)
