"""How much of a crowded prompt the simulated model takes in and writes down."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Annotated, TypeVar

from pydantic import Field

from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.strategies import parameters
from combee_dspy.streams import derive

__all__ = ["CapacityModel"]

T = TypeVar("T")

Limit = Annotated[int, Field(ge=1)] | None

KEPT_AT_100 = 21 / 264
"""Strategies left of those that one agent at a time learns on Formula, with a batch of 100.

Source: arXiv 2604.04247.
"""


@parameters
class CapacityModel:
    """Context overload as a law of one writing call: limits and shares, alone or together.

    *Attention*: of the N items of a prompt (reflection records and lesson lines), min(N,
    attended_items) are read, a uniform sample without replacement, whatever their place in the
    prompt. A copy of an item is an item of its own. *Reading* counts tokens instead, so that a
    lesson of one line weighs less than a whole record: items are read in a uniform random order as
    long as those read so far have fewer than attended_tokens tokens; the one that crosses the limit
    is still read. An item reaches to the start of the next one in the same message, or to the
    message's end. With both limits the sample of attended_items comes first, and its tokens are
    counted in the order in which it was drawn. *Writing*: at most written_lessons distinct lessons
    are written in one answer; lessons of an instruction that is being rewritten are written first
    and count. *Collapse*: of a prompt with more than collapsing_records records each item is read
    with probability collapsed_share; lesson lines do not count. *Dilution*: each of N items is read
    with probability N^(−dilution). *Platitudes*: with probability platitude_share a call writes
    nothing that it was given, however little that is.

    The limits of 12 items, 12 lessons and 5,000 tokens are assumptions stated here, not
    measurements of a model. Whatever ends in one call must lose under the first and the second, so
    neither can speak for or against a merge. 5,000 tokens are about 12 records of the Formula
    benchmark, and lie between effective lengths, up to which 85 % of the short-context score is
    kept, that the NoLiMa benchmark (arXiv 2502.05167) measured: 2K tokens for Llama 3.3 70B and 8K
    for GPT-4o. Collapse and dilution are two ways through published figures, see there. The laws
    belong to the service alone: nothing outside it may read them.

    Args:
        attended_items: Items read in one call; None for no limit.
        written_lessons: Lessons written in one call; None for no limit.
        lesson_miss_rate: Probability that an item is read and its lesson is still not seen.
        attended_tokens: Tokens of items after which no further item is read; None for no limit.
        collapsing_records: Records up to which a call reads everything; None for no limit.
        collapsed_share: Share of the items that a call with more records reads.
        dilution: Exponent, 0 for none.
        platitude_share: Share of the calls that keep nothing.
    """

    attended_items: Limit = 12
    written_lessons: Limit = None
    lesson_miss_rate: Annotated[float, Field(ge=0, le=1)] = 0.0
    attended_tokens: Limit = None
    collapsing_records: Limit = None
    collapsed_share: Annotated[float, Field(ge=0, le=1)] = KEPT_AT_100
    dilution: Annotated[float, Field(ge=0, le=1)] = 0.0
    platitude_share: Annotated[float, Field(ge=0, le=1)] = 0.0

    @classmethod
    def attention(cls, items: int = 12) -> CapacityModel:
        """Return the law with the attention limit alone."""
        return cls(attended_items=items, written_lessons=None)

    @classmethod
    def reading(cls, tokens: int = 5_000) -> CapacityModel:
        """Return the law with the limit on tokens alone."""
        return cls(attended_items=None, attended_tokens=tokens)

    @classmethod
    def writing(cls, lessons: int = 12) -> CapacityModel:
        """Return the law with the writing limit alone."""
        return cls(attended_items=None, written_lessons=lessons)

    @classmethod
    def collapse(cls, records: int = 24) -> CapacityModel:
        """Return the law that gives way at once: the one under which the paper's own result holds.

        Naive at 40 leaves 526 tokens where a scan leaves 6,887 (0.08), and at 100 21 of 264
        strategies (0.08): the same share at both sizes, as of a call that has given up. A scan of
        40 reads shards of at most 14 and loses little, so the limit lies between 14 and 40: 24 is
        their geometric mean. That lists of lessons do not count is an assumption, without which the
        merge of such a scan would lose what its shards keep.
        """
        return cls(attended_items=None, collapsing_records=records)

    @classmethod
    def diluted(cls, exponent: float = round(-math.log(KEPT_AT_100, 100), 2)) -> CapacityModel:
        """Return the law that gives way slowly, through the same 21 of 264 at 100 items: 0.55.

        Lines count as records do, so a merge loses as the naive call does, and the paper's result
        fails. At 40 a naive call keeps 0.13 by it.
        """
        return cls(attended_items=None, dilution=exponent)

    @classmethod
    def platitudes(cls, share: float = 0.13) -> CapacityModel:
        """Return the law of a call that keeps all or nothing, as measured on a language model.

        Qwen2.5-Coder-1.5B-Instruct, asked for the lessons of five to ten reflections, wrote all of
        them down in 86 of 105 calls, none in 13 and a part in six; the share is that of the first
        63. It is the one law here that was not assumed, and it holds for reading: what that model
        loses where it merges lists is not in it.
        """
        return cls(attended_items=None, platitude_share=share)

    @classmethod
    def unlimited(cls) -> CapacityModel:
        """Return the law without any limit."""
        return cls(attended_items=None, written_lessons=None)

    def crowded(
        self,
        items: int,
        seed: int = 0,
        *place: str | int,
        tokens: Sequence[int] = (),
        records: int | None = None,
    ) -> bool:
        """Whether a call leaves one of so many items unread, by the same draw as :meth:`attend`."""
        return len(self._read(items, tokens, records, seed, *place)) < items

    def attend(
        self,
        items: Sequence[T],
        seed: int,
        *place: str | int,
        tokens: Sequence[int] = (),
        records: int | None = None,
    ) -> tuple[T, ...]:
        """Return the items that are read, in their order.

        Args:
            items: The items of the prompt, in order of appearance.
            seed: The service's seed.
            *place: What identifies the call.
            tokens: Tokens of each item, needed with ``attended_tokens`` alone.
            records: How many of the items are reflection records; by default all.
        """
        read = tuple(
            items[index] for index in self._read(len(items), tokens, records, seed, *place)
        )
        if self.lesson_miss_rate == 0:
            return read
        stream = derive(seed, "miss", *place)
        return tuple(item for item in read if stream.random() >= self.lesson_miss_rate)

    def _read(
        self, items: int, tokens: Sequence[int], records: int | None, seed: int, *place: str | int
    ) -> Sequence[int]:
        """Return the places of the items that are read, in order."""
        if (
            self.platitude_share
            and derive(seed, "platitudes", *place).random() < self.platitude_share
        ):
            return ()
        places = self._within(items, tokens, seed, *place)
        share = items**-self.dilution if items else 1.0
        if (
            self.collapsing_records is not None
            and (items if records is None else records) > self.collapsing_records
        ):
            share *= self.collapsed_share
        if share == 1:
            return places
        stream = derive(seed, "overload", *place)
        return [index for index in places if stream.random() < share]

    def _within(
        self, items: int, tokens: Sequence[int], seed: int, *place: str | int
    ) -> Sequence[int]:
        """Return the places of the items that the limits let through, in order."""
        if self.attended_tokens is None:
            return _sample(range(items), self.attended_items, seed, "attend", *place)
        if len(tokens) != items:
            remedy = "attended_tokens counts the tokens of every item."
            raise ArgumentValueError(
                "tokens", len(tokens), f"are not those of {items} items", remedy
            )
        most = items if self.attended_items is None else min(items, self.attended_items)
        # A sample comes in random order.
        order = derive(seed, "attend", *place).sample(range(items), most)
        before = accumulate((tokens[index] for index in order), initial=0)
        return sorted(
            index
            for index, tokens_before in zip(order, before, strict=False)
            if tokens_before < self.attended_tokens
        )

    def write(
        self, old: Sequence[T], new: Sequence[T], seed: int, *place: str | int
    ) -> tuple[T, ...]:
        """Return the lessons that are written, old ones first.

        Args:
            old: Distinct lessons of the instruction that is rewritten; empty when none is.
            new: Distinct lessons that are not among ``old``.
            seed: The service's seed.
            *place: What identifies the call.
        """
        first = _sample(old, self.written_lessons, seed, "write-old", *place)
        room = None if self.written_lessons is None else self.written_lessons - len(first)
        return first + _sample(new, room, seed, "write-new", *place)


def _sample(items: Sequence[T], limit: int | None, seed: int, *place: str | int) -> tuple[T, ...]:
    if limit is None or len(items) <= limit:
        return tuple(items)
    chosen = derive(seed, *place).sample(range(len(items)), limit)
    return tuple(items[index] for index in sorted(chosen))
