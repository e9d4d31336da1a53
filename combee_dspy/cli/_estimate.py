"""Estimates what a run will cost before it runs: rollouts, tokens, dollars, and whether prompts
fit. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import dspy

from combee_dspy.costs import Costs, Price, price_of, window_of
from combee_dspy.reflections import estimate_tokens
from combee_dspy.stopping import Limits

# Assumptions, which the command prints beside the figures.
_ANSWER = 300  # tokens of an answer, and of a reading's lessons
_FRAME = 250  # tokens of the adapter's own words around a prompt
_READING = 1_500  # tokens of a reading's question, without records
_RECORDS = 10  # records that one reading takes
_COPIES = 2  # how often a record is read
_VALIDATIONS = 4  # an epoch, where the budget is in epochs
_ASSUMED = (
    f"answers and verdicts of {_ANSWER} tokens, {_FRAME} around a prompt, half of the rollouts on"
    f" training rows, each read {_COPIES} times, {_RECORDS} a call; an epoch has {_VALIDATIONS}"
    " validations; learned text makes prompts longer"
)

_Tokens = Mapping[str, tuple[int, int]]  # prompt and completion tokens by role


@dataclass(frozen=True, slots=True)
class Model:
    """A model that a run asks.

    Attributes:
        name: Its name as DSPy knows it.
        context: Longest prompt plus answer in tokens, where the file has it.
    """

    name: str
    context: int | None = None


def estimate(
    student: dspy.Module,
    splits: Mapping[str, Sequence[dspy.Example]],
    limits: Limits,
    models: Mapping[str, Model],
    costs: Costs,
    call_tokens: int | None,
    *,
    each_read: bool = False,
) -> dict[str, str]:
    """Return what a run may come to, and what to look at before it begins, as people read it.

    Args:
        student: The program.
        splits: Rows of ``train``, ``validation`` and ``heldout``.
        limits: What the run may spend at most.
        models: Who is asked, as ``task``, ``proposer``, and ``evaluator`` where a judge scores.
        costs: Prices of the user's own.
        call_tokens: The most that one reading may take; ``None`` where the aggregator has no limit.
        each_read: Whether each trajectory is reflected on in a call of its own, as for playbooks.
    """
    shape = _Shape.of(student, splits, each_read=each_read)
    prices = {role: price_of(model.name, costs.prices) for role, model in models.items()}
    rollouts, heldout = _planned_rollouts(splits, limits), 2 * len(splits["heldout"])
    search = shape.tokens(rollouts, models)
    first, share = _first_limit(limits, search, _dollars(search, prices))
    if first:
        rollouts = max(1, round(rollouts * share))
    tokens = shape.tokens(rollouts, models, heldout)
    ends = f"; budget.{first} ends it" if first else ""
    by_role = (f"{role} {sent:,} in, {answered:,} out" for role, (sent, answered) in tokens.items())
    dollars = f"about ${_dollars(tokens, prices):.4f}"
    if None in prices.values():
        is_known = any(price is not None for price in prices.values())
        dollars = f"{dollars} and what has no price" if is_known else "unknown"
    problems = (*_unpriced(models, costs), *_too_small(models, shape.longest_prompts(call_tokens)))
    return {
        "rollouts": f"about {rollouts:,}, and {heldout:,} of the held-out set{ends}",
        "tokens": f"about {'; '.join(by_role)}",
        "dollars": dollars,
        "assuming": _ASSUMED,
        **{f"look at {number}": text for number, text in enumerate(problems, 1)},
    }


def _planned_rollouts(splits: Mapping[str, Sequence[dspy.Example]], limits: Limits) -> int:
    if limits.rollouts is not None:
        return limits.rollouts
    epochs = 1.0 if limits.epochs is None else limits.epochs
    train, validation = len(splits["train"]), len(splits["validation"])
    return round(epochs * (train + _VALIDATIONS * validation)) + validation


def _dollars(tokens: _Tokens, prices: Mapping[str, Price | None]) -> float:
    """Return what tokens cost, as far as they have a price."""
    priced = ((role, price) for role, price in prices.items() if price is not None)
    return sum(price.dollars(*tokens[role]) for role, price in priced)


def _first_limit(limits: Limits, search: _Tokens, dollars: float) -> tuple[str, float]:
    """Return which limit ends the search first, and which share of the rollouts it pays for."""
    shares, tokens = {"": 1.0}, sum(map(sum, search.values()))
    if limits.tokens is not None and tokens > limits.tokens:
        shares["tokens"] = limits.tokens / tokens
    if limits.dollars is not None and dollars > limits.dollars:
        shares["dollars"] = limits.dollars / dollars
    return min(shares.items(), key=lambda item: item[1])


@dataclass(frozen=True, slots=True)
class _Shape:
    """What a rollout asks for: tokens of its prompts, its calls, and how it is read."""

    prompt: int
    longest: int
    calls: int
    each_read: bool

    @classmethod
    def of(
        cls,
        student: dspy.Module,
        splits: Mapping[str, Sequence[dspy.Example]],
        *,
        each_read: bool,
    ) -> _Shape:
        prompts = [_prompt_tokens(student, row) for rows in splits.values() for row in rows] or [0]
        calls = max(1, len(student.predictors()))
        return cls(round(fmean(prompts)), max(prompts), calls, each_read)

    def tokens(self, rollouts: int, roles: Iterable[str], heldout: int = 0) -> _Tokens:
        """Return prompt and completion tokens by role."""
        bought, read = rollouts + heldout, rollouts // 2
        record = self.prompt + _ANSWER
        records, reflected = _COPIES * read, read * self.each_read
        readings = -(-records // _RECORDS) + reflected
        by_role = {
            "task": (bought * self.prompt, bought * self.calls * _ANSWER),
            "proposer": ((records + reflected) * record + readings * _READING, readings * _ANSWER),
            "evaluator": (bought * record, bought * _ANSWER),
        }
        return {role: by_role[role] for role in roles}

    def longest_prompts(self, call_tokens: int | None) -> dict[str, int]:
        """Return the most tokens that one call of a role may take."""
        longest = self.longest // self.calls + _ANSWER
        reading = _RECORDS * (self.prompt + _ANSWER) + _READING
        return {"task": longest, "proposer": call_tokens or reading, "evaluator": longest + _ANSWER}


def _prompt_tokens(student: dspy.Module, row: dspy.Example) -> int:
    """Return the tokens of a program's prompts for a row, about: each predictor reads all of it."""
    inputs = estimate_tokens(json.dumps(row.inputs().toDict(), default=str, ensure_ascii=False))
    return sum(
        estimate_tokens(predictor.signature.instructions) + inputs + _FRAME
        for predictor in student.predictors()
    )


def _unpriced(models: Mapping[str, Model], costs: Costs) -> Iterator[str]:
    names = {role: model.name for role, model in models.items()}
    for role, model in costs.unpriced(names).items():
        yield f"no price is known for {model} ({role}): give costs.prices, or 0 for your own server"


def _too_small(models: Mapping[str, Model], needs: Mapping[str, int]) -> Iterator[str]:
    remedies = {
        "task": "shorten the inputs, or give a model with a larger context",
        "evaluator": "shorten the inputs, or give the judge a model with a larger context",
        "proposer": "lower max_call_tokens of the aggregator (strategies.aggregator.params)",
    }
    for role, model in models.items():
        window = window_of(model.name) if model.context is None else model.context
        if window is not None and needs[role] > window:
            yield (
                f"{model.name} ({role}) takes {window:,} tokens and may be asked with about"
                f" {needs[role]:,}: {remedies[role]}"
            )
