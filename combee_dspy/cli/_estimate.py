"""What a run will cost, reckoned before it: rollouts, tokens, dollars, and whether prompts fit.
Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import dspy

from combee_dspy.costs import Costs, price_of, window_of
from combee_dspy.reflections import estimate_tokens
from combee_dspy.stopping import Limits

__all__ = ["Asked", "Estimate", "estimate"]

# Assumptions, which the command says beside the figures.
_ANSWER = 300  # tokens of an answer, and of a reading's lessons
_FRAME = 250  # tokens of the adapter's own words around a prompt
_READING = 1_500  # tokens of a reading's question, without records
_RECORDS = 10  # records that one reading takes
_COPIES = 2  # how often a record is read
_VALIDATIONS = 4  # an epoch, where the budget is in epochs


@dataclass(frozen=True, slots=True)
class Asked:
    """A model that a run asks.

    Attributes:
        model: Its name as DSPy knows it.
        context: Longest prompt plus answer, where the file says; else what the price table says.
    """

    model: str
    context: int | None = None

    @property
    def window(self) -> int | None:
        """Tokens that it takes, ``None`` where nobody knows."""
        return self.context if self.context is not None else window_of(self.model)


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a run may come to.

    Attributes:
        rollouts: Of the search.
        heldout: Beside them, for the final figure.
        tokens: Prompt and completion tokens by role.
        ends: What of the budget ends the search first; empty where nothing else than rollouts does.
        dollars: Of all that has a price; ``None`` where nothing has.
        priced: Whether all of it has one.
        problems: What does not fit, or is not known, each with its remedy.
    """

    rollouts: int
    heldout: int
    ends: str
    tokens: Mapping[str, tuple[int, int]]
    dollars: float | None
    priced: bool
    problems: tuple[str, ...]

    def facts(self) -> dict[str, str]:
        """Return the estimate as people are told it."""
        tokens = "; ".join(
            f"{role} {prompt:,} in, {completion:,} out"
            for role, (prompt, completion) in self.tokens.items()
        )
        more = "" if self.priced else " and what has no price"
        lines = {
            "rollouts": (
                f"about {self.rollouts:,}, and {self.heldout:,} of the held-out set{self.ends}"
            ),
            "tokens": f"about {tokens}",
            "dollars": "unknown" if self.dollars is None else f"about ${self.dollars:.4f}{more}",
            "reckoned with": (
                f"answers and verdicts of {_ANSWER} tokens, {_FRAME} around a prompt, half of the"
                f" rollouts on training rows, each read {_COPIES} times, {_RECORDS} a call; an"
                f" epoch has {_VALIDATIONS} validations; learned text makes prompts longer"
            ),
        }
        problems = {f"look at {number}": text for number, text in enumerate(self.problems, 1)}
        return {**lines, **problems}


def estimate(
    student: dspy.Module,
    splits: Mapping[str, Sequence[dspy.Example]],
    limits: Limits,
    models: Mapping[str, Asked],
    costs: Costs,
    call_tokens: int | None,
    *,
    each_read: bool = False,
) -> Estimate:
    """Return what a run may come to, and what to look at before it begins.

    Args:
        student: The program.
        splits: Rows of ``train``, ``validation`` and ``heldout``.
        limits: What the run may spend at most.
        models: Who is asked, as ``task``, ``proposer``, and ``evaluator`` where a judge scores.
        costs: Prices of one's own.
        call_tokens: The most that one reading may take; ``None`` where the aggregator has no limit.
        each_read: Whether each trajectory is reflected on in a call of its own, as for playbooks.
    """
    train, validation = len(splits["train"]), len(splits["validation"])
    epochs = limits.epochs if limits.epochs is not None else 1.0
    planned = round(epochs * (train + _VALIDATIONS * validation)) + validation
    rollouts = planned if limits.rollouts is None else limits.rollouts
    heldout = 2 * len(splits["heldout"])
    prompts = [_prompt(student, row) for rows in splits.values() for row in rows]
    calls = max(1, len(student.predictors()))
    typical = round(fmean(prompts)) if prompts else 0
    shape = _Shape(typical, calls, each_read)
    prices = {role: price_of(model.model, costs.prices) for role, model in models.items()}

    def dollars_of(tokens: Mapping[str, tuple[int, int]]) -> list[float]:
        return [price.dollars(*tokens[role]) for role, price in prices.items() if price is not None]

    search = shape.tokens(rollouts, models)
    spent = {"tokens": sum(map(sum, search.values())), "dollars": sum(dollars_of(search))}
    shares = {
        name: most / spent[name]
        for name in spent
        if (most := getattr(limits, name)) is not None and spent[name] > most
    }
    first = min(shares, key=lambda name: shares[name], default="")
    if first:
        rollouts = max(1, round(rollouts * shares[first]))
    tokens = shape.tokens(rollouts, models, heldout)
    amounts = dollars_of(tokens)
    longest = max(prompts, default=0) // calls + _ANSWER
    reading = _RECORDS * (typical + _ANSWER) + _READING
    needs = {"task": longest, "proposer": call_tokens or reading, "evaluator": longest + _ANSWER}
    problems = (*_unpriced(models, costs), *_too_small(models, needs))
    return Estimate(
        rollouts,
        heldout,
        f"; budget.{first} ends it" if first else "",
        tokens,
        sum(amounts) if amounts else None,
        len(amounts) == len(prices),
        problems,
    )


@dataclass(frozen=True, slots=True)
class _Shape:
    """What a rollout asks for: tokens of its prompts, its calls, and how it is read."""

    typical: int
    calls: int
    each_read: bool

    def tokens(
        self, rollouts: int, models: Iterable[str], heldout: int = 0
    ) -> dict[str, tuple[int, int]]:
        """Return prompt and completion tokens by role."""
        bought, read = rollouts + heldout, rollouts // 2
        records = _COPIES * read
        readings = -(-records // _RECORDS) + read * self.each_read
        prompt = records * (self.typical + _ANSWER) + readings * _READING
        prompt += read * self.each_read * (self.typical + _ANSWER)
        every = {
            "task": (bought * self.typical, bought * self.calls * _ANSWER),
            "proposer": (prompt, readings * _ANSWER),
            "evaluator": (bought * (self.typical + _ANSWER), bought * _ANSWER),
        }
        return {role: every[role] for role in models}


def _prompt(student: dspy.Module, row: dspy.Example) -> int:
    """Return the tokens of a program's prompts for a row, about: each predictor reads all of it."""
    inputs = estimate_tokens(json.dumps(row.inputs().toDict(), default=str, ensure_ascii=False))
    return sum(
        estimate_tokens(predictor.signature.instructions) + inputs + _FRAME
        for predictor in student.predictors()
    )


def _unpriced(models: Mapping[str, Asked], costs: Costs) -> Iterator[str]:
    names = {role: model.model for role, model in models.items()}
    for role, model in costs.unpriced(names).items():
        yield f"no price is known for {model} ({role}): give costs.prices, or 0 for your own server"


def _too_small(models: Mapping[str, Asked], needs: Mapping[str, int]) -> Iterator[str]:
    remedies = {
        "task": "shorten the inputs, or give a model with a larger context",
        "evaluator": "shorten the inputs, or give the judge a model with a larger context",
        "proposer": "lower max_call_tokens of the aggregator (strategies.aggregator.params)",
    }
    for role, model in models.items():
        window = model.window
        if window is not None and needs[role] > window:
            yield (
                f"{model.model} ({role}) takes {window:,} tokens and may be asked with about"
                f" {needs[role]:,}: {remedies[role]}"
            )
