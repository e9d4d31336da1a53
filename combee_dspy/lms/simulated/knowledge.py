"""What the simulated task model can know: questions, and the lesson that each one needs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from combee_dspy.exceptions import ArgumentTypeError, ArgumentValueError
from combee_dspy.lms.simulated.matching import words_of
from combee_dspy.lms.simulated.mistakes import mistake_of, said_of, wrong_number
from combee_dspy.streams import derive

if TYPE_CHECKING:
    from combee_dspy.benchmarks import Benchmark

__all__ = ["SimulatedQuestion", "SimulatedTask", "same_answer"]

_KEY = re.compile(r"[A-Za-z][\w.:-]*")
_FEWEST_WORDS = 3


@dataclass(frozen=True, slots=True)
class SimulatedQuestion:
    """A question that the simulated model recognises in a prompt.

    Args:
        text: The question, at least three words, as it appears in the program's input.
        target: The right answer.
        wrong: The answer given by a model that lacks the lesson; must differ from ``target``.
        key: The lesson's key, a letter followed by letters, digits, ``_``, ``.``, ``:`` or ``-``: ``"F17"``.
        lesson: The lesson as one sentence, without its key.

    Raises:
        ArgumentValueError: A value is empty, the key has another form, or wrong and right answers are the same.
    """

    text: str
    target: str
    wrong: str
    key: str
    lesson: str

    def __post_init__(self) -> None:
        if len(words_of(self.text)) < _FEWEST_WORDS:
            raise ArgumentValueError(
                "text", self.text, f"has fewer than {_FEWEST_WORDS} words", "A shorter text is found by accident."
            )
        if not _KEY.fullmatch(self.key):
            raise ArgumentValueError(
                "key", self.key, "is not a lesson key", "Use a letter followed by letters, digits, '_', '.', ':', '-'."
            )
        if not self.lesson.strip() or "\n" in self.lesson:
            raise ArgumentValueError("lesson", self.lesson, "must be one line of text", "Write it as one sentence.")
        if same_answer(self.target, self.wrong):
            raise ArgumentValueError("wrong", self.wrong, "is the right answer too", "Give an answer that scores 0.")

    @property
    def line(self) -> str:
        """The lesson as it is written into prompts: ``[F17] sentence``."""
        return f"[{self.key}] {self.lesson}"


@dataclass(frozen=True, slots=True)
class SimulatedTask:
    """What the simulated model knows about a task, and how it comes to answer rightly.

    A question is answered rightly if and only if its lesson's key stands in
    the instruction, or a demonstration of the same key is in the prompt, or a
    draw per question says that the model knew it anyway. With ``taught_rate`` below 1 some questions stay too
    hard for it, taught or not. This is a stated
    assumption that makes learning measurable; it is no model of a language
    model.

    Args:
        questions: The known questions. Several may share a key; the first one's sentence is that key's lesson.
        answer_fields: Output fields that hold the task's answer. A request for any of them is a task request;
            any other request with text to write is a writing request.
        base_rate: Probability, in [0, 1], that a question is answered rightly without its lesson. At temperature
            0 it is drawn once per question, above 0 anew at each call.
        taught_rate: Probability, in [``base_rate``, 1], that a question is answered rightly with its lesson, by the
            same draw: what is known untaught is known taught.
        joiner: Where one request asks several known questions, what joins their answers, in the questions' order;
            ``None`` answers the last question alone.

    Raises:
        ArgumentValueError: No question, no answer field, or a rate outside [0, 1].
    """

    questions: tuple[SimulatedQuestion, ...]
    answer_fields: tuple[str, ...] = ("answer",)
    base_rate: float = 0.3
    joiner: str | None = None
    taught_rate: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "questions", tuple(self.questions))
        names: object = self.answer_fields
        if isinstance(names, str):
            raise ArgumentTypeError("answer_fields", names, "must be a tuple of names", 'Use ("answer",).')
        object.__setattr__(self, "answer_fields", tuple(self.answer_fields))
        if not self.questions:
            raise ArgumentValueError("questions", self.questions, "is empty", "Give at least one question.")
        if not self.answer_fields:
            raise ArgumentValueError("answer_fields", (), "is empty", "Name the task's output field.")
        if not 0 <= self.base_rate <= 1:
            raise ArgumentValueError("base_rate", self.base_rate, "must be within [0, 1]", "It is a probability.")
        if not self.base_rate <= self.taught_rate <= 1:
            remedy = "Being taught does not make an answer worse."
            raise ArgumentValueError("taught_rate", self.taught_rate, f"is not in [{self.base_rate}, 1]", remedy)

    @property
    def lessons(self) -> dict[str, str]:
        """The line of each lesson, ``[F17] sentence``, by key in order of first appearance."""
        lines: dict[str, str] = {}
        for question in self.questions:
            lines.setdefault(question.key, question.line)
        return lines

    def by_mistake(self) -> SimulatedTask:
        """Return the same questions with finer lessons: one for each key and each mistake that is made with it.

        The lesson a question needs is then against the mistake that its wrong answer shows: ``F17.sign`` instead
        of ``F17``, and a lesson helps with a third of a key's questions.

        Raises:
            ArgumentValueError: A question's answer is no number, or its wrong answer is no usual mistake.
        """
        questions = []
        for question in self.questions:
            mistake = mistake_of(question.target, question.wrong)
            if mistake is None:
                problem = f"is no usual mistake with {question.target!r}"
                remedy = "Lessons by mistake need numbers as answers, spoiled by the simulated model itself."
                raise ArgumentValueError("wrong", question.wrong, problem, remedy)
            subject = question.lesson.partition(":")[0]
            lesson = f"{subject}: {said_of(mistake)}."
            questions.append(replace(question, key=f"{question.key}.{mistake}", lesson=lesson))
        return replace(self, questions=tuple(questions))

    @classmethod
    def from_examples(  # noqa: PLR0913 - one function per column of a record, all but three optional
        cls,
        examples: Iterable[Mapping[str, Any]],
        question_field: str,
        answer_field: str,
        *,
        key_of: Callable[[Mapping[str, Any]], str],
        lesson_of: Callable[[Mapping[str, Any]], str] | None = None,
        wrong_of: Callable[[Mapping[str, Any]], str] | None = None,
        base_rate: float = 0.3,
        seed: int = 0,
    ) -> SimulatedTask:
        """Build the knowledge from examples of a task.

        Args:
            examples: ``dspy.Example`` objects or mappings.
            question_field: The field that holds the question.
            answer_field: The field that holds the answer, in the examples and in the program's output.
            key_of: Gives the lesson that an example needs. Characters that no key may hold become ``-``.
            lesson_of: Gives the lesson's sentence; by default a sentence made from the key.
            wrong_of: Gives the wrong answer; by default a number spoiled in one of the usual ways, or the answer
                of another example, chosen by ``seed``.
            base_rate: See the class.
            seed: Seed of the wrong answers.

        Raises:
            ArgumentValueError: A field is missing, or an example cannot become a question.
        """
        rows = [_row(example, question_field, answer_field) for example in examples]
        labels = sorted({answer for _, _, answer in rows})
        questions = []
        for example, text, target in rows:
            raw_key = str(key_of(example))
            lesson = lesson_of(example) if lesson_of else f"{raw_key}: use the method that is right for {raw_key}."
            wrong = wrong_of(example) if wrong_of else _wrong(target, labels, seed, text)
            key = re.sub(r"[^\w.:-]+", "-", raw_key).strip("-")
            questions.append(SimulatedQuestion(text, target, wrong, key, lesson))
        return cls(tuple(questions), (answer_field,), base_rate)

    @classmethod
    def from_benchmark(
        cls,
        benchmark: Benchmark,
        seed: int = 0,
        *,
        params: Mapping[str, Any] | None = None,
        base_rate: float = 0.3,
    ) -> SimulatedTask:
        """Build the knowledge of a benchmark: a lesson for each formula, for each tag, or else for each label.

        Keys come from the rows of all splits. For ``formula`` the rows are read
        once more, whole: which formula a question needs stands in the context only.

        Args:
            benchmark: The benchmark.
            seed: Seed of the wrong answers.
            params: What the benchmark was loaded with. Needed for ``formula``, and there only.
            base_rate: See the class.

        Raises:
            ArgumentValueError: ``params`` are missing for ``formula``, or a row cannot become a question.
            DataSourceError: The rows of ``formula`` cannot be read again.
        """
        if benchmark.name == "formula":
            return _formula(seed, params, base_rate)
        rows = [row for split in benchmark.splits for row in split.examples]
        if benchmark.name == "finer":
            # Its module imports this one.
            from combee_dspy.lms.simulated.finer import finer_task

            return finer_task(rows, base_rate=base_rate, seed=seed)
        question, answer = next(iter(benchmark.signature.input_fields)), next(iter(benchmark.signature.output_fields))

        def key_of(row: Mapping[str, Any]) -> str:
            # A key starts with a letter, and a label may be a number.
            return str(row["formula"]) if "formula" in row else f"{answer} {row[answer]}"

        return cls.from_examples(rows, question, answer, key_of=key_of, base_rate=base_rate, seed=seed)


def same_answer(left: str, right: str) -> bool:
    """Whether two answers are the same: equal as numbers without commas, or as text without case and quotes."""
    one, other = (text.strip().strip("\"'`").strip() for text in (left, right))
    if one.casefold() == other.casefold():
        return True
    try:
        return float(one.replace(",", "")) == float(other.replace(",", ""))
    except ValueError:
        return False


def _formula(seed: int, params: Mapping[str, Any] | None, base_rate: float) -> SimulatedTask:
    # Both are needed for this benchmark only, and formula_task's module imports this one.
    from combee_dspy.benchmarks import load_benchmark
    from combee_dspy.lms.simulated.formula import formula_task

    if not params:
        raise ArgumentValueError(
            "params", params, "do not say where the rows are", "Give what formula was loaded with."
        )
    whole = load_benchmark("formula", **{**params, "formula_text": True})
    rows = (row for split in whole.splits for row in split.examples)
    records = ({"context": row["question"], "target": row["answer"]} for row in rows)
    return formula_task(records, base_rate=base_rate, seed=seed)


def _wrong(target: str, labels: Sequence[str], seed: int, text: str) -> str:
    others = [label for label in labels if not same_answer(label, target)]
    number = wrong_number(target, seed, text)
    if number is not None:
        return number
    return derive(seed, "wrong", text).choice(others) if others else f"not {target}"


def _row(example: Mapping[str, Any], question_field: str, answer_field: str) -> tuple[Mapping[str, Any], str, str]:
    for name in (question_field, answer_field):
        if name not in example:
            raise ArgumentValueError("examples", name, "lack this field", "Name fields that every example has.")
    return example, str(example[question_field]), str(example[answer_field])
