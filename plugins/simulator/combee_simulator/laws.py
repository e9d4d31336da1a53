"""The laws of the simulated service: how long answers take and reason, and how calls fail."""

from __future__ import annotations

import math
import re
from enum import StrEnum
from itertools import cycle
from statistics import NormalDist
from typing import Annotated

from pydantic import Field

from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.strategies import parameters
from combee_dspy.streams import derive_seed

__all__ = ["FailureRates", "LatencyLaw", "ReasoningLaw", "Status", "WordingLaw", "uniform"]

_NORMAL = NormalDist()
_BITS = 52
_CHARS_PER_TOKEN = 4
_LEAST_REASONING = 8
# Says nothing that a lesson, a question or an answer could be found in.
_SENTENCES = (
    "Simulated reasoning: first see what is asked.",
    "Then look at which quantities are given and which one is missing.",
    "The instruction comes before habit wherever it says how to proceed.",
    "Put the quantities in their places, one after another.",
    "Carry the calculation out step by step and keep every digit until the end.",
    "Check whether the result is of a sensible size and sign.",
    "Go back where a step does not hold.",
    "Write the result in the form that was asked for.",
)

Rate = Annotated[float, Field(ge=0, le=1)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


def uniform(seed: int, *place: str | int) -> float:
    """Return one draw from the open interval (0, 1) for one place of a run.

    The same numbers as ``derive(seed, *place)`` would be seeded with, without
    the cost of a generator for a single draw.
    """
    # 52 bits: half a step more would not be representable below 1.0.
    return ((derive_seed(seed, *place) >> (128 - _BITS)) + 0.5) / (1 << _BITS)


def _lognormal(sigma: float, seed: int, *place: str | int) -> float:
    return math.exp(sigma * _NORMAL.inv_cdf(uniform(seed, *place))) if sigma else 1.0


@parameters
class LatencyLaw:
    """Seconds = (ttft + output_tokens / tokens_per_second) × lognormal(0, sigma).

    The lognormal factor has median 1, so the bracket is the median latency.
    Queueing for a slot comes on top and is not part of this law. The form and
    the defaults are those of the project's measured comparison of optimizers
    on one epoch (0.5 s to the first token, 60 tokens a second, sigma 0.35);
    they describe no particular provider.

    Args:
        ttft: Median time to the first token, in simulated seconds.
        tokens_per_second: Median decoding speed of one slot.
        sigma: Standard deviation of the log of the factor. 0 means no spread.
    """

    ttft: Seconds = 0.5
    tokens_per_second: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 60.0
    sigma: Seconds = 0.35

    def seconds(self, output_tokens: int, seed: int, *place: str | int) -> float:
        """Return the simulated seconds of one answer, without queueing.

        Args:
            output_tokens: Tokens written.
            seed: The service's seed.
            *place: What identifies the answer: the request's content and its occurrence.
        """
        return (self.ttft + output_tokens / self.tokens_per_second) * _lognormal(
            self.sigma, seed, "latency", *place
        )


@parameters
class ReasoningLaw:
    """Tokens of a ``reasoning`` field in a task's answer = tokens × lognormal(0, sigma).

    The factor has median 1 and derives from the service's seed and the request, so
    a repeated request reasons as long as before. The text says nothing that could
    teach. The length decides latency and tokens, never whether the answer is right.

    Args:
        tokens: Median tokens.
        sigma: Standard deviation of the log of the factor. The default is an
            assumption: as wide as the service's latencies at equal length.
    """

    tokens: Annotated[float, Field(ge=_LEAST_REASONING, allow_inf_nan=False)] = 300.0
    sigma: Seconds = 0.35

    def text(self, seed: int, *place: str | int) -> str:
        """Return the reasoning at one place, of the length that the law draws there."""
        drawn = self.tokens * _lognormal(self.sigma, seed, "reasoning", *place)
        left = max(drawn, _LEAST_REASONING) * _CHARS_PER_TOKEN + 1
        parts: list[str] = []
        for word in cycle(" ".join(_SENTENCES).split()):
            left -= 1 + len(word)
            if left < 0:
                break
            parts.append(word)
        return " ".join(parts)


_OTHER_WORDS = {
    "answer": ("reply", "respond", "give the result"),
    "as given": ("unchanged", "the way they stand there", "just as they come"),
    "carry": ("keep", "hold on to", "work with"),
    "compute": ("calculate", "work out", "determine"),
    "digit": ("decimal", "figure", "place"),
    "divide": ("take the quotient of", "form the quotient of", "put in proportion"),
    "figures": ("numbers", "amounts", "values"),
    "in the end": ("last of all", "when all is done", "as the final step"),
    "keep": ("preserve", "retain", "leave alone"),
    "method": ("procedure", "way of working", "approach"),
    "number": ("figure", "value", "amount"),
    "order": ("sequence", "given succession", "arrangement"),
    "plain": ("bare", "simple", "mere"),
    "ratio": ("quotient", "fraction", "proportion"),
    "result": ("outcome", "final value", "difference found"),
    "right": ("correct", "proper", "fitting"),
    "round": ("shorten", "cut to length", "approximate"),
    "subtract": ("take the difference", "deduct", "take one from the other"),
    "use": ("apply", "work by", "go by"),
}
_KNOWN_WORDS = re.compile(rf"\b(?:{'|'.join(_OTHER_WORDS)})\b")
_FRAMES = (
    "{}",
    "{} That is what decides it.",
    "{} Answers went wrong here.",
    "Mind this case. {}",
    "Seen in several examples: {}",
)
_QUOTED = re.compile(r"(?:\w+\W+){12}\w+")


@parameters
class WordingLaw:
    """How calls word the lessons that they write: an assumption, like the other laws.

    No model words so by rule.

    Args:
        each_call: Whether every call words a lesson in its own way: common words by a draw among
            others that mean much the same, and a sentence around. By default all calls word a
            lesson alike.
        quoting: Probability that a lesson written from records quotes 13 words of the question that
            it was read in.
    """

    each_call: bool = False
    quoting: Rate = 0.0

    def line(self, line: str, question: str | None, seed: int, *place: str | int) -> str:
        """Return a lesson's line as one call writes it.

        Args:
            line: ``[F17] sentence``. Its key stays, and what stands before a colon.
            question: The question that taught it in this call, if one did.
            seed: The service's seed.
            *place: What identifies the call and the lesson.
        """
        key, _, sentence = line.partition(" ")
        subject, colon, rule = sentence.rpartition(": ")
        if self.each_call:

            def another(word: re.Match[str]) -> str:
                words = (word[0], *_OTHER_WORDS[word[0]])
                return words[int(uniform(seed, "word", word[0], *place) * len(words))]

            frame = _FRAMES[int(uniform(seed, "frame", *place) * len(_FRAMES))]
            sentence = frame.format(f"{subject}{colon}{_KNOWN_WORDS.sub(another, rule)}")
        quote = _QUOTED.search(question or "")
        if quote and self.quoting and uniform(seed, "quote", *place) < self.quoting:
            sentence = f'{sentence.removesuffix(".")}, as in "{quote[0]} …".'
        return f"{key} {sentence}"


class Status(StrEnum):
    """How a call ended, as the service counts it.

    ``ok``, ``malformed``, ``truncated`` and ``slow`` are HTTP 200 and billed.
    ``abandoned`` was answered and billed after the client had closed the
    connection. ``rate_limited`` (429), ``server_error`` (500) and
    ``bad_request`` (400) bill no tokens.
    """

    OK = "ok"
    MALFORMED = "malformed"
    TRUNCATED = "truncated"
    SLOW = "slow"
    ABANDONED = "abandoned"
    RATE_LIMITED = "rate_limited"
    SERVER_ERROR = "server_error"
    BAD_REQUEST = "bad_request"


_INJECTED = (
    Status.SERVER_ERROR,
    Status.RATE_LIMITED,
    Status.SLOW,
    Status.MALFORMED,
    Status.TRUNCATED,
)


@parameters
class FailureRates:
    """Probabilities that an attempt fails in each way; all 0 by default.

    One uniform draw per (seed, request content, attempt) picks at most one
    failure, so an attempt fails with the sum of the rates and a repeated
    request draws again. The attempt is the number of times that the service
    has seen the same content.

    Args:
        server_error: HTTP 500 after the time to the first token.
        rate_limited: HTTP 429 at once, with ``Retry-After``.
        slow: The right answer, ``slow_seconds`` late: what a client with a shorter timeout sees as
            a timeout.
        malformed: HTTP 200 with a text that holds none of the fields asked for.
        truncated: HTTP 200 with half of the answer and ``finish_reason`` "length".
        slow_seconds: Extra simulated seconds of a slow answer.
        retry_after: Simulated seconds in ``Retry-After`` of 429 and 500.
            The header carries them multiplied by the service's time scale.
    """

    server_error: Rate = 0.0
    rate_limited: Rate = 0.0
    slow: Rate = 0.0
    malformed: Rate = 0.0
    truncated: Rate = 0.0
    slow_seconds: Seconds = 120.0
    retry_after: Seconds = 1.0

    def __post_init__(self) -> None:
        if self.total > 1 + 1e-9:
            raise ArgumentValueError(
                "failures", self.total, "add up to more than 1", "Lower one of the rates."
            )

    @property
    def total(self) -> float:
        """Probability that an attempt fails in any way."""
        return sum(getattr(self, status.value) for status in _INJECTED)

    def draw(self, seed: int, content: str, attempt: int) -> Status:
        """Return how an attempt ends: ``Status.OK`` or one of the injected failures.

        Args:
            seed: The service's seed.
            content: Digest of the request's content.
            attempt: 0 for the first time that this content is seen.
        """
        if self.total == 0:
            return Status.OK
        left = uniform(seed, "failure", content, attempt)
        for status in _INJECTED:
            left -= getattr(self, status.value)
            if left < 0:
                return status
        return Status.OK
