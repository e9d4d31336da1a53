"""Budgets: stop when enough has been spent."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar

from pydantic import Field

from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.stopping._base import Limits, RunView, StoppingRule
from combee_dspy.strategies import parameters

__all__ = ["Budget", "require_countable"]

_Count = Annotated[int, Field(gt=0)]
_Amount = Annotated[float, Field(gt=0, allow_inf_nan=False)]


@parameters
class Budget(StoppingRule):
    """Stops when any one of its limits is reached.

    Its limits are also what the search keeps to: nothing is begun that would pass one. What an LM call
    comes to is known afterwards only, so it is expected to come to what others of its kind did. A run that
    was resumed has one budget: what its earlier parts spent counts.

    A dollars budget needs the price of every model of the run: :func:`require_countable` refuses
    it before the first call where one is not known. Should a program then call a model without a
    price on its own, what has been spent is no longer known, and the run stops with that reason.

    Args:
        rollouts: Rollouts bought.
        calls: LM calls sent to a service, those that it turned away included; answers of a cache are free.
        tokens: Prompt and completion tokens together, all roles.
        dollars: Dollars by the run's prices.
        seconds: Wall-clock seconds of the run.
        gpu_seconds: Seconds of the GPUs behind the run's models, as the run counts them.
        epochs: Training examples drawn over the size of the training set. 1 ends the run once every
            example was in one minibatch: an epoch's last minibatch is cut to what is left of it.
        updates: Updates.
    """

    name: ClassVar[str] = "budget"
    rollouts: _Count | None = None
    calls: _Count | None = None
    tokens: _Count | None = None
    dollars: _Amount | None = None
    seconds: _Amount | None = None
    gpu_seconds: _Amount | None = None
    epochs: _Amount | None = None
    updates: _Count | None = None

    def __post_init__(self) -> None:
        if self.limits() == Limits():
            names = ", ".join(each.name for each in dataclasses.fields(Limits))
            raise ArgumentValueError("budget", None, "has no limit", f"Give at least one of {names}.")

    def limits(self) -> Limits:
        """Return its own limits."""
        return Limits(**self.params())

    def needs(self) -> frozenset[str]:
        """Return those of ``dollars`` and ``gpu_seconds`` that have a limit."""
        return frozenset(name for name in ("dollars", "gpu_seconds") if getattr(self, name) is not None)

    def check(self, view: RunView) -> str | None:
        """Return every limit that is reached or cannot be kept, with both figures, or ``None``."""
        return "; ".join(self._reached(view)) or None

    def _reached(self, view: RunView) -> Iterator[str]:
        for name, most in self.params().items():
            amount = getattr(view, name)
            if most is None:
                continue
            if amount is None:
                unknown = {
                    "dollars": "the price of a call that was made is not known",
                    "gpu_seconds": "nobody counts the GPU-seconds of this run",
                }
                yield f"budget.{name} cannot be kept: {unknown[name]}"
            elif amount >= most:
                yield f"budget.{name} is spent: {_shown(amount)} of {_shown(most)}"


def _shown(amount: float) -> str:
    return f"{amount:,.0f}" if float(amount).is_integer() else f"{amount:,.4f}".rstrip("0")


def require_countable(rule: StoppingRule | None, *, unpriced: Mapping[str, str], gpus: bool) -> None:
    """Refuse a rule that decides by dollars or GPU-seconds where these cannot be known.

    Args:
        rule: The run's stopping rule, if it has one.
        unpriced: Name by role of every model whose price is not known.
        gpus: Whether the run knows of GPUs behind any of its models.

    Raises:
        ArgumentValueError: The rule decides by one of them, and it cannot be known.
    """
    needs = frozenset[str]() if rule is None else rule.needs()
    if "dollars" in needs and unpriced:
        listed = ", ".join(f"{model!r} ({role})" for role, model in unpriced.items())
        remedy = (
            f"Add a price for {next(iter(unpriced.values()))!r}, dollars per million tokens "
            "(0 for a server of your own), or set the budget in tokens."
        )
        problem = f"cannot be kept: no price is known for {listed}"
        raise ArgumentValueError("budget.dollars", dict(unpriced), problem, remedy)
    if "gpu_seconds" in needs and not gpus:
        remedy = "Say how many GPUs serve each role, or set the budget in seconds."
        raise ArgumentValueError("budget.gpu_seconds", None, "cannot be kept: nobody counts GPU-seconds", remedy)
