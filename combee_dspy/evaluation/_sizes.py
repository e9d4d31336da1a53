"""Compares the sizes of judge and proposer, and prices a judge, by names and list prices."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import dspy

from combee_dspy.costs import Costs, Price, price_of
from combee_dspy.evaluation._judge import Judge
from combee_dspy.exceptions import ArgumentValueError, RefusedError
from combee_dspy.reflections import estimate_tokens

# Assumed tokens of a response, of a verdict, and of the adapter's own words around a prompt.
_RESPONSE, _VERDICT, _FRAME = 300, 150, 400
_PARAMETERS = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)([bm])(?![a-z0-9])")


@dataclass(frozen=True, slots=True)
class SizeComparison:
    """Whether a judge is smaller than a proposer.

    Attributes:
        smaller: Whether it is; ``None`` where neither names nor prices tell.
        reason: By what, with both figures.
    """

    smaller: bool | None
    reason: str


def compare_sizes(
    judge: str, proposer: str, prices: Mapping[str, Price] | None = None
) -> SizeComparison:
    """Return whether a judge's model is smaller than a proposer's.

    Parameters that both names state decide (``1.5b``, ``135M``), else dollars a million completion
    tokens, where both prices are known. A price is no size: it stands in for one that nobody
    publishes.

    Args:
        judge: The model's name, as DSPy knows it.
        proposer: The same of the other.
        prices: Prices of your own, by model.

    Example:
        >>> compare_sizes("openai/qwen2.5-1.5b-instruct", "openai/llama-3.3-70b").reason
        '1.5 beside 70 billion parameters, by their names'
    """
    sizes = [_billions(name) for name in (judge, proposer)]
    if sizes[0] is not None and sizes[1] is not None:
        reason = f"{sizes[0]:g} beside {sizes[1]:g} billion parameters, by their names"
        return SizeComparison(sizes[0] < sizes[1], reason)
    costs = [price_of(name, prices) for name in (judge, proposer)]
    if costs[0] is not None and costs[1] is not None and costs[0].completion + costs[1].completion:
        dollars = [price.completion for price in costs if price is not None]
        reason = f"${dollars[0]:g} beside ${dollars[1]:g} a million completion tokens, by price"
        return SizeComparison(dollars[0] < dollars[1], reason)
    return SizeComparison(None, "neither their names nor their prices say how large they are")


def _billions(name: str) -> float | None:
    sizes = [
        float(number) / (1 if unit == "b" else 1000)
        for number, unit in _PARAMETERS.findall(re.sub(r"[-_:/]", " ", name.lower()))
    ]
    return max(sizes, default=None)  # a context may stand behind it: 14B-Instruct-1M


def check_smaller(
    judges: Iterable[dspy.LM], proposer: dspy.LM, prices: Mapping[str, Price] | None = None
) -> None:
    """Refuse a judge that is known to be no smaller than the model that proposes.

    Args:
        judges: LMs, as :func:`~combee_dspy.evaluation.evaluator_lms` returns them.
        proposer: The LM that proposes.
        prices: Prices of your own, by model.

    Raises:
        RefusedError: One of them is not smaller.
    """
    for judge in judges:
        compared = compare_sizes(str(judge.model), str(proposer.model), prices)
        if compared.smaller is False:
            raise RefusedError(
                f"a judge ({judge.model}) no smaller than the proposer ({proposer.model})",
                compared.reason,
                "Give the judge a smaller model, or use Combee without this preset.",
            )


def cost_of_judging(judge: Judge, rows: Sequence[dspy.Example], costs: Costs) -> float:
    """Return the dollars of one evaluation, reckoned: the mean over rows, by prices a token.

    A response is taken for 300 tokens, a verdict for 150.

    Raises:
        ArgumentValueError: There are no rows, or the price of the judge's model is not known.
    """
    model = str(getattr(judge.lm or dspy.settings.lm, "model", ""))
    price = price_of(model, costs.prices)
    if price is None:
        remedy = "Give Costs(prices={…}), with 0 for a server of your own."
        raise ArgumentValueError("judge", model, "has no known price", remedy)
    if not rows:
        raise ArgumentValueError("rows", [], "are none", "Give some that will be judged.")
    fields = [row.toDict() if judge.reference else row.inputs().toDict() for row in rows]
    tokens = sum(estimate_tokens(str(values)) for values in fields) / len(rows)
    prompt = round(tokens) + estimate_tokens(judge.criteria) + _RESPONSE + _FRAME
    return price.dollars(prompt, _VERDICT)
