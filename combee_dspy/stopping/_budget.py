"""Budgets: stop when enough has been spent."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

from combee_dspy.bounds import check_number
from combee_dspy.costs import PriceTable, unpriced_models
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.stopping._base import RunView, StoppingRule

__all__ = ["Budget", "require_gpu_seconds", "require_prices"]

_COSTS = ("rollouts", "calls", "tokens", "dollars", "seconds", "gpu_seconds")
_LIMITS = (*_COSTS, "epochs")


class Budget(StoppingRule):
    """Stops when any one of its limits is reached.

    Limits are soft: rules are asked between iterations, and the iteration
    that crosses a limit is finished and paid. Of a limit in rollouts a part is kept
    for drawing the finalists again; of the others nothing is: a run that one of them
    ends returns the best of one draw, and one that ends just below may pass it by
    these draws. A run that was resumed from its
    ``log_dir`` has one budget: what its earlier parts spent counts.

    A dollars budget needs the price of every model of the run:
    :func:`require_prices` refuses it before the first call where one is not
    known. Should a program then call a model without a price on its own, what
    has been spent is no longer known, and the run stops with that reason.

    Args:
        rollouts: Rollouts bought.
        calls: LM calls sent to a service; DSPy's cache hits are free.
        tokens: Prompt and completion tokens together, all roles.
        dollars: Dollars by the ledger's price table.
        seconds: Wall-clock seconds of the run.
        gpu_seconds: Seconds of the GPUs behind the run's models, as the run counts them. Where nobody counts
            them, :func:`require_gpu_seconds` refuses the limit before the first call.
        epochs: Training examples drawn over the size of the training set. 1 ends the run once every example was in
            one minibatch: an epoch's last minibatch is cut to what is left of it, so a whole number is kept exactly.

    Raises:
        ArgumentTypeError: A limit is not a number.
        ArgumentValueError: A limit is not positive and finite, or none is given.
    """

    name: ClassVar[str] = "budget"

    def __init__(
        self,
        rollouts: float | None = None,
        calls: float | None = None,
        tokens: float | None = None,
        dollars: float | None = None,
        seconds: float | None = None,
        gpu_seconds: float | None = None,
        epochs: float | None = None,
    ) -> None:
        self.rollouts = rollouts
        self.calls = calls
        self.tokens = tokens
        self.dollars = dollars
        self.seconds = seconds
        self.gpu_seconds = gpu_seconds
        self.epochs = epochs
        # Checked here and not in check(): by then a wrong limit would have let money go.
        for limit in _LIMITS:
            _check_limit(limit, getattr(self, limit))
        if all(getattr(self, limit) is None for limit in _LIMITS):
            raise ArgumentValueError("budget", None, "has no limit", f"Give at least one of {', '.join(_LIMITS)}.")

    def needs_prices(self) -> bool:
        """Return whether a limit in dollars is set."""
        return self.dollars is not None

    def needs_gpu_seconds(self) -> bool:
        """Return whether a limit in GPU-seconds is set."""
        return self.gpu_seconds is not None

    def rollout_limit(self) -> int | None:
        """Return the limit in rollouts, if it has one."""
        return None if self.rollouts is None else math.ceil(self.rollouts)

    def epoch_limit(self) -> float | None:
        """Return the limit in epochs, if it has one."""
        return self.epochs

    def check(self, view: RunView) -> str | None:
        """Return the first limit that is reached, with both figures, or ``None``."""
        unkept = self._unkept(view)
        if unkept is not None:
            return unkept
        for name, amount in self._reached(view).items():
            return f"budget.{name} is spent: {_shown(amount)} of {_shown(getattr(self, name))}"
        return None

    def cost_reached(self, view: RunView) -> bool:
        """Return whether a limit other than that in epochs is reached, or cannot be kept."""
        return self._unkept(view) is not None or not self._reached(view).keys().isdisjoint(_COSTS)

    def _unkept(self, view: RunView) -> str | None:
        """Return which limit cannot be kept any more, because nobody knows what has been spent."""
        total = view.totals.total
        if self.dollars is not None and total.unpriced:
            return (
                f"budget.dollars cannot be kept: {total.unpriced:,} calls have no known cost "
                f"(known: {total.known_dollars:.4f} of {self.dollars:g} dollars)"
            )
        if self.gpu_seconds is not None and view.gpu_seconds is None:
            return "budget.gpu_seconds cannot be kept: nobody counts the GPU-seconds of this run"
        return None

    def _reached(self, view: RunView) -> dict[str, float]:
        """Return the amount of each limit that is reached."""
        total = view.totals.total
        amounts = {
            "rollouts": view.rollouts,
            "calls": total.sent,
            "tokens": total.tokens,
            "dollars": total.known_dollars,
            "seconds": view.seconds,
            "gpu_seconds": view.gpu_seconds or 0.0,
            "epochs": view.epochs,
        }
        limits = {name: getattr(self, name) for name in _LIMITS}
        return {name: amounts[name] for name, most in limits.items() if most is not None and amounts[name] >= most}


def _check_limit(name: str, limit: Any) -> None:
    if limit is None:
        return
    remedy = "Give a positive number, or leave it out for no limit."
    check_number(f"budget.{name}", limit, remedy)
    if limit <= 0:
        raise ArgumentValueError(f"budget.{name}", limit, "is not positive and finite", remedy)


def _shown(amount: float) -> str:
    return f"{amount:,.0f}" if float(amount).is_integer() else f"{amount:,.4f}".rstrip("0")


def require_prices(rule: StoppingRule | None, models: Mapping[str, str], prices: PriceTable) -> None:
    """Refuse a rule that decides by dollars where a model's price is not known.

    Args:
        rule: The run's stopping rule, if it has one.
        models: Model name by role.
        prices: The ledger's prices.

    Raises:
        ArgumentValueError: The rule needs prices and one of the models has none.
    """
    if rule is None or not rule.needs_prices():
        return
    missing = unpriced_models(models, prices)
    if missing:
        listed = ", ".join(f"{model!r} ({role})" for role, model in missing.items())
        example = next(iter(missing.values()))
        raise ArgumentValueError(
            "budget.dollars",
            missing,
            f"cannot be kept: no price is known for {listed}",
            f"Add prices={{{example!r}: Price(prompt=…, completion=…)}}, dollars per million tokens "
            "(0 for a server of your own), or set the budget in tokens.",
        )


def require_gpu_seconds(rule: StoppingRule | None, counted: bool) -> None:
    """Refuse a rule that decides by GPU-seconds where nobody counts them.

    Args:
        rule: The run's stopping rule, if it has one.
        counted: Whether the run knows of GPUs behind any of its models.

    Raises:
        ArgumentValueError: The rule needs them and nobody counts them.
    """
    if rule is not None and rule.needs_gpu_seconds() and not counted:
        remedy = "Say how many GPUs serve each role, or set the budget in seconds."
        raise ArgumentValueError("budget.gpu_seconds", None, "cannot be kept: nobody counts GPU-seconds", remedy)
