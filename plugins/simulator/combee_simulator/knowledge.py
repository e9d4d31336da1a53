"""What the simulated task model can know: questions, and the lesson that each one needs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

from pydantic import Field

from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.strategies import parameters
from combee_dspy.streams import derive
from combee_simulator.matching import words_of
from combee_simulator.mistakes import AGAINST, mistake_of, wrong_number

__all__ = ["SimulatedQuestion", "SimulatedTask", "same_answer"]

_FEWEST_WORDS = 3

Row = Mapping[str, Any]
Rate = Annotated[float, Field(ge=0, le=1)]


@parameters
class SimulatedQuestion:
    """A question that the simulated model recognises in a prompt.

    Args:
        text: The question, at least three words, as it appears in the program's input.
        target: The right answer.
        wrong: The answer given by a model that lacks the lesson; must differ from ``target``.
        key: The lesson's key, a letter followed by letters, digits, ``_``, ``.``, ``:`` or ``-``:
            ``"F17"``.
        lesson: The lesson as one sentence, without its key.
    """

    text: str
    target: str
    wrong: str
    key: Annotated[str, Field(pattern=r"^[A-Za-z][\w.:-]*$")]
    lesson: Annotated[str, Field(pattern=r"^[^\n]*\S[^\n]*$")]

    def __post_init__(self) -> None:
        if len(words_of(self.text)) < _FEWEST_WORDS:
            remedy = "A shorter text is found by accident."
            raise ArgumentValueError(
                "text", self.text, f"has fewer than {_FEWEST_WORDS} words", remedy
            )
        if same_answer(self.target, self.wrong):
            raise ArgumentValueError(
                "wrong", self.wrong, "is the right answer too", "Give an answer that scores 0."
            )

    @property
    def line(self) -> str:
        """The lesson as it is written into prompts: ``[F17] sentence``."""
        return f"[{self.key}] {self.lesson}"


@parameters
class SimulatedTask:
    """What the simulated model knows about a task, and how it comes to answer rightly.

    A question is answered rightly if and only if its lesson's key stands in the instruction, or a
    demonstration of the same key is in the prompt, or a draw per question says that the model knew
    it anyway. With ``taught_rate`` below 1 some questions stay too hard for it, taught or not. This
    is a stated assumption that makes learning measurable; it is no model of a language model.

    Args:
        questions: The known questions. Several may share a key; the first one's sentence is that
            key's lesson.
        answer_fields: Output fields that hold the task's answer. A request for any of them is a
            task request; any other request with text to write is a writing request.
        base_rate: Probability that a question is answered rightly without its lesson. At
            temperature 0 it is drawn once per question, above 0 anew at each call.
        joiner: Where one request asks several known questions, what joins their answers, in the
            questions' order; ``None`` answers the last question alone.
        taught_rate: Probability, at least ``base_rate``, that a question is answered rightly with
            its lesson, by the same draw: what is known untaught is known taught.
    """

    questions: Annotated[tuple[SimulatedQuestion, ...], Field(min_length=1)]
    answer_fields: Annotated[tuple[str, ...], Field(min_length=1)] = ("answer",)
    base_rate: Rate = 0.3
    joiner: str | None = None
    taught_rate: Rate = 1.0

    def __post_init__(self) -> None:
        if self.taught_rate < self.base_rate:
            remedy = "Being taught does not make an answer worse."
            raise ArgumentValueError(
                "taught_rate", self.taught_rate, f"is below {self.base_rate}", remedy
            )

    @property
    def lessons(self) -> dict[str, str]:
        """The line of each lesson, ``[F17] sentence``, by key in order of first appearance."""
        lines: dict[str, str] = {}
        for question in self.questions:
            lines.setdefault(question.key, question.line)
        return lines

    def by_mistake(self) -> SimulatedTask:
        """Return the same questions with finer lessons: one for each key and each mistake.

        The lesson a question needs is then against the mistake that its wrong answer shows:
        ``F17.sign`` instead of ``F17``, and a lesson helps with a third of a key's questions.

        Raises:
            ArgumentValueError: A question's answer is no number, or its wrong answer is no usual
                mistake.
        """
        questions = []
        for question in self.questions:
            mistake = mistake_of(question.target, question.wrong)
            if mistake is None:
                problem = f"is no usual mistake with {question.target!r}"
                remedy = "Lessons by mistake need numbers, spoiled by the simulated model itself."
                raise ArgumentValueError("wrong", question.wrong, problem, remedy)
            subject = question.lesson.partition(":")[0]
            questions.append(
                replace(
                    question,
                    key=f"{question.key}.{mistake}",
                    lesson=f"{subject}: {AGAINST[mistake]}.",
                )
            )
        return replace(self, questions=tuple(questions))

    @classmethod
    def from_examples(  # noqa: PLR0913 - all but three are optional
        cls,
        examples: Iterable[Row],
        question_field: str,
        answer_field: str,
        *,
        key_of: Callable[[Row], str],
        lesson_of: Callable[[Row], str] | None = None,
        wrong_of: Callable[[Row], str] | None = None,
        base_rate: float = 0.3,
        seed: int = 0,
    ) -> SimulatedTask:
        """Build the knowledge from examples of a task.

        Args:
            examples: ``dspy.Example`` objects or mappings.
            question_field: The field that holds the question.
            answer_field: The field that holds the answer, in the examples and in the program's
                output.
            key_of: Gives the lesson that an example needs. Characters that no key may hold become
                ``-``.
            lesson_of: Gives the lesson's sentence; by default a sentence made from the key.
            wrong_of: Gives the wrong answer; by default a number spoiled in one of the usual ways,
                or the answer of another example, chosen by ``seed``.
            base_rate: See the class.
            seed: Seed of the wrong answers.
        """
        rows = list(examples)
        labels = sorted({str(row[answer_field]) for row in rows})
        questions = []
        for row in rows:
            text, target, raw_key = (
                str(row[question_field]),
                str(row[answer_field]),
                str(key_of(row)),
            )
            lesson = (
                lesson_of(row)
                if lesson_of
                else f"{raw_key}: use the method that is right for {raw_key}."
            )
            wrong = wrong_of(row) if wrong_of else _wrong(target, labels, seed, text)
            key = re.sub(r"[^\w.:-]+", "-", raw_key).strip("-")
            questions.append(SimulatedQuestion(text, target, wrong, key, lesson))
        return cls(tuple(questions), (answer_field,), base_rate)


def same_answer(left: str, right: str) -> bool:
    """Whether two answers are equal: as numbers without commas, or as text without case."""
    first, second = (text.strip().strip("\"'`").strip() for text in (left, right))
    if first.casefold() == second.casefold():
        return True
    try:
        return float(first.replace(",", "")) == float(second.replace(",", ""))
    except ValueError:
        return False


def _wrong(target: str, labels: Sequence[str], seed: int, text: str) -> str:
    number = wrong_number(target, seed, text)
    if number is not None:
        return number
    others = [label for label in labels if not same_answer(label, target)]
    return derive(seed, "wrong", text).choice(others) if others else f"not {target}"
