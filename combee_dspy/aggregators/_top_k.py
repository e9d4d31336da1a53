"""Retrieval as the reduce: one call over the few reflections that say most."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Awaitable, Mapping, Sequence
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from combee_dspy.aggregators._base import Aggregator, CallTokens, gathered
from combee_dspy.aggregators._prompts import LearnFromExamples
from combee_dspy.aggregators._reading import ReadingTask
from combee_dspy.aggregators._scan import ScanState
from combee_dspy.aggregators._vectors import Vectors, reflection_vectors, similarities
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.records import Lessons, Reflection
from combee_dspy.reflections import LEAST_TOKENS, feedback_text
from combee_dspy.strategies import StrategyContext, parameters

Mode = Literal["central", "diverse"]

# How many reflections the choice is judged against: more of them change it little and cost n²
# comparisons.
_REFERENCES = 2_000
_WORD = re.compile(r"\w+")
# DSPy writes this sentence where a metric gives a score and no feedback.
_SCORE = re.compile(r"\bscore of (-?\d+(?:\.\d+)?)")
_LEAST = 0.05
_SUCCESS = 0.5


@parameters
class TopK(Aggregator):
    """Shows one call the k most central or most diverse reflections, and leaves the others unread.

    Reflections are compared by hashed character n-grams of what their records hold, feedback before
    outputs and inputs, however long the inputs are. Those whose feedback says more are preferred:
    an error that names the right answer or rule before a bare "correct". A score counts only where
    the record shows it.

    One call, whatever the number of reflections; what the k do not show cannot be learned.

    Example:
        >>> import asyncio
        >>> from combee_dspy.aggregators import TopK
        >>> from combee_dspy.testing import arriving, context, reflections
        >>> async def learn():
        ...     return await TopK(k=3).aggregate(arriving(reflections(9)), context())
        >>> asyncio.run(learn()).nodes[0].sources
        (1, 3, 7)

    Args:
        k: How many reflections the call sees. 10 is the smallest of the prompt sizes (10, 20 and 30
            documents) of Liu et al. 2023 (arXiv 2307.03172), who find that what stands in the
            middle is used the less the more there is.
        mode: ``"central"``: those that represent all others best; ``"diverse"``: those farthest
            from each other.
        max_call_tokens: Estimated tokens the call may take, the prompt included. A reflection that
            takes more than an equal share is trimmed, with a warning.
        max_lessons: The most lessons the call may return.
    """

    name: ClassVar[str] = "top-k"

    k: Annotated[int, Field(ge=1)] = 10
    mode: Mode = "central"
    max_call_tokens: CallTokens = 24_000
    max_lessons: Annotated[int, Field(ge=1)] = 32

    def __post_init__(self) -> None:
        if self.max_call_tokens // 2 // self.k < LEAST_TOKENS:
            problem = f"leaves fewer than {LEAST_TOKENS} tokens for each in half of a call"
            raise ArgumentValueError("k", self.k, problem, "Lower k or raise max_call_tokens.")

    async def aggregate(
        self, reflections: Sequence[Awaitable[Reflection | None]], context: StrategyContext
    ) -> Lessons:
        """Return what the chosen reflections teach."""
        scan = ScanState(context, self.max_call_tokens)
        items = await gathered(reflections)
        if len(items) > self.k:
            chosen = choose(reflection_vectors(items), informativeness(items), self.k, self.mode)
            items = [items[position] for position in sorted(chosen)]
        if items:
            question = ReadingTask(LearnFromExamples, {"most_lessons": self.max_lessons})
            await scan.read_items(scan.trim_evenly(items), question)
            if len(scan.top) > 1:
                scan.join()
        return scan.result()


def informativeness(reflections: Sequence[Reflection]) -> list[float]:
    """Return how much each reflection's feedback says, in (0, 1].

    The words of a feedback count by their rarity among the feedbacks at hand, min(1, ln((1 + n) /
    n_w)), each once: a sentence that every record carries says nothing, an expected answer or a
    stated rule much. The bound keeps a mistake that a third of the records make from counting less
    than a rare one. With W the sum and M the mean of all sums, the weight is W / (W + M). A record
    that shows the best score counts half beside those that failed.
    """
    words = [set(_WORD.findall(feedback_text(reflection).casefold())) for reflection in reflections]
    held = Counter(word for own in words for word in own)
    # Sets of text come in another order in every process, and sums of floats depend on it.
    sums = [
        math.fsum(min(1.0, math.log((1 + len(words)) / held[word])) for word in own)
        for own in words
    ]
    middle = math.fsum(sums) / len(sums) or 1.0
    scores = [_score(reflection.record) for reflection in reflections]
    best = max((score for score in scores if score is not None), default=0.0)
    failed = any(score is not None and score < best for score in scores)
    return [
        max(total / (total + middle), _LEAST) * (_SUCCESS if failed and score == best else 1.0)
        for total, score in zip(sums, scores, strict=True)
    ]


def _score(record: Mapping[str, object]) -> float | None:
    """Return the score that a record shows, ``None`` where it shows none."""
    for key, value in record.items():
        if (
            str(key).casefold() == "score"
            and isinstance(value, (int, float))
            and not isinstance(value, bool)
        ):
            return float(value)
    feedback = next(
        (value for key, value in record.items() if "feedback" in str(key).casefold()), None
    )
    match = _SCORE.search(feedback) if isinstance(feedback, str) else None
    return float(match[1]) if match else None


def choose(vectors: Vectors, weights: Sequence[float], k: int, mode: Mode) -> list[int]:
    """Choose min(k, n) of n ≥ 1 rows, in the order in which they are taken. Of equals, the first.

    ``"central"``: the rows that together represent all others best. Each step takes the row that
    raises Σᵢ wᵢ · maxⱼ sim(i, j) most, times its own weight: greedy facility location, within 1 −
    1/e of the optimum for equal weights (Nemhauser, Wolsey and Fisher 1978). The k rows nearest to
    the mean would all be of the largest group.

    ``"diverse"``: greedy farthest-point traversal (Gonzalez 1985), weighted: each step takes the
    row with the highest wⱼ · (1 − the similarity to the nearest row taken). The first is the most
    central one. The weight keeps an odd record without anything to learn from being taken for its
    oddity.
    """
    weight = np.asarray(weights, np.float64)
    references = np.arange(0, len(vectors), -(-len(vectors) // _REFERENCES))
    near = similarities(vectors, vectors[references]).astype(np.float64)
    gains = weight * (near @ weight[references])
    nearest = np.zeros(len(references))
    distance = np.ones(len(vectors))
    chosen: list[int] = []
    while len(chosen) < min(k, len(vectors)):
        gains[chosen] = -1.0
        chosen.append(int(np.round(gains, 6).argmax()))
        if mode == "central":
            nearest = np.maximum(nearest, near[chosen[-1]])
            gains = weight * (np.maximum(near - nearest, 0.0) @ weight[references])
        else:
            distance = np.minimum(
                distance, 1.0 - similarities(vectors, vectors[[chosen[-1]]])[:, 0]
            )
            gains = weight * distance
    return chosen
