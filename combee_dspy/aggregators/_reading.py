"""What every scan does first: size a call, deal reflections into shards, read each shard by one call."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import dspy

from combee_dspy.aggregators._parse import parse_lessons
from combee_dspy.aggregators._plan import TokenBudget
from combee_dspy.aggregators._prompts import LearnFromExamples
from combee_dspy.aggregators._telling import ScanTeller
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.records import FailedCall, Lesson, NodeOutput, Reflection
from combee_dspy.reflections import estimate_record_tokens, estimate_tokens, render_records
from combee_dspy.strategies import Strategy, StrategyContext

__all__ = [
    "LEARN",
    "LESSON_TOKENS",
    "Asking",
    "Held",
    "Question",
    "ask",
    "below",
    "call_room",
    "check_call_tokens",
    "check_least",
    "fit_limit",
    "heard",
    "outputs",
    "read_level",
    "read_texts",
    "token_budget",
]

LESSON_TOKENS = 40
"""What a lesson of one or two sentences takes."""

# The signature's own text, its output schema and the adapter's frame, rounded up.
_PROMPT_TOKENS = 1_000
# A reflection may take this part of a call, so that every shard still compares several.
_SHARE = 4
_MIN_CALL_TOKENS = 2_000


@dataclass(frozen=True, slots=True)
class Held:
    """What a node holds once its level is done.

    Attributes:
        output: The node's output, for the log.
        lessons: Its lessons with their sources.
    """

    output: NodeOutput
    lessons: tuple[Lesson, ...]


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked about a shard.

    Attributes:
        signature: Takes ``current_instruction``, ``examples_with_feedback`` and the field ``limit``.
        limit: The input field that says how many texts may come back.
        answer: The output field that holds them.
    """

    signature: type[dspy.Signature]
    limit: str
    answer: str


LEARN = Question(LearnFromExamples, "most_lessons", "lessons")


@dataclass(frozen=True, slots=True)
class Asking:
    """A question as it is put to every shard of a scan.

    Attributes:
        question: What is asked.
        most: The most texts that a call may return.
        extra: Further input fields, the same for every call.
    """

    question: Question
    most: int
    extra: Mapping[str, Any] = field(default_factory=dict)


def below(held: Iterable[Held]) -> tuple[int, ...]:
    """Return the indices of the reflections below nodes, ascending, each once."""
    return tuple(sorted({source for one in held for source in one.output.sources}))


def check_least(strategy: Strategy, bounds: Mapping[str, int]) -> None:
    """Check that parameters reach their least values.

    Raises:
        ArgumentValueError: One does not.
    """
    for name, least in bounds.items():
        value = getattr(strategy, name)
        if value < least:
            raise ArgumentValueError(name, value, f"is below {least}", f"Give at least {least}.")


def check_call_tokens(max_call_tokens: int) -> None:
    """Check that a call has room for a prompt and data.

    Raises:
        ArgumentValueError: It has not.
    """
    if max_call_tokens < _MIN_CALL_TOKENS:
        problem = f"is below {_MIN_CALL_TOKENS:,}"
        raise ArgumentValueError("max_call_tokens", max_call_tokens, problem, "Give room for prompt and data.")


def call_room(max_call_tokens: int, context: StrategyContext) -> int:
    """Return the estimated tokens that the data of one call may take beside the prompt and the current text."""
    # Where the instruction itself fills a call, some examples must still stand beside it.
    return max(max_call_tokens - _PROMPT_TOKENS - estimate_tokens(context.text), max_call_tokens // 2)


def fit_limit(room: int) -> int:
    """Return the estimated tokens that one reflection may take of a call; one that takes more is split or trimmed."""
    return room // _SHARE


def token_budget(items: Sequence[Reflection], room: int) -> TokenBudget:
    """Return what each reflection takes, and what a call may take."""
    # Media are kept even where they pass the limit: such a reflection gets a shard of its own.
    return TokenBudget(tuple(min(estimate_record_tokens(item.record), room) for item in items), room)


def read_level(told: ScanTeller, shards: Sequence[Sequence[Reflection]], asking: Asking) -> list[Held]:
    """Read every shard by one call, all of them in flight at once, and say what each node returned.

    Args:
        told: Emits the level's events; its context is the way to the LM.
        shards: The reflections of each call, in the order in which it sees them.
        asking: What is asked.

    Returns:
        What each node of level 1 holds, in the order of the shards. A call that
        failed or wrote nothing readable holds no lessons and says why.
    """
    return heard(told, shards, ask(told.context, shards, asking), asking)


def ask(
    context: StrategyContext, shards: Sequence[Sequence[Reflection]], asking: Asking
) -> Sequence[dspy.Prediction | FailedCall]:
    """Return the answer about each shard, all of them asked for at once. Emits nothing."""
    inputs: list[dict[str, Any]] = [
        {
            "current_instruction": context.text,
            "examples_with_feedback": render_records(shard),
            asking.question.limit: asking.most,
            **asking.extra,
        }
        for shard in shards
    ]
    return context.predict(asking.question.signature, inputs, role="proposer") if inputs else ()


def heard(
    told: ScanTeller, shards: Sequence[Sequence[Reflection]], answers: Sequence[Any], asking: Asking
) -> list[Held]:
    """Return the nodes of level 1 that answers about shards make, and say what each returned."""
    held: list[Held] = []
    for node, (shard, answer) in enumerate(zip(shards, answers, strict=True)):
        sources = tuple(sorted({reflection.index for reflection in shard}))
        texts, failed = read_texts(told, (1, node), answer, asking.question.answer, asking.most)
        lessons = tuple(Lesson(text, sources) for text in texts)
        held.append(Held(NodeOutput(1, node, sources, tuple(texts), failed), lessons))
    told.level_done(one.output for one in held)
    return held


def read_texts(
    told: ScanTeller, place: tuple[int, int], answer: Any, name: str, most: int
) -> tuple[list[str], str | None]:
    """Return the texts in an answer, and what is wrong with it where it holds none.

    Args:
        told: Hears of texts that were cut.
        place: Level and node.
        answer: A prediction or a ``FailedCall``; its content is hostile.
        name: The output field that holds the texts.
        most: The most texts to keep.
    """
    if isinstance(answer, FailedCall):
        return [], answer.error
    value = getattr(answer, name, None)
    if value is None:
        return [], f"EmptyAnswer: the answer has no {name} field"
    texts, notes = parse_lessons(value, most)
    for note in notes:
        told.note(*place, f"AnswerCut: {note}")
    return texts, None


def outputs(levels: Sequence[Sequence[Held]]) -> tuple[NodeOutput, ...]:
    """Return the outputs of all nodes in (level, node) order."""
    return tuple(held.output for level in levels for held in level)
