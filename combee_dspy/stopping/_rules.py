"""Stopping rules: budgets, a target and patience, and whether a run can keep them."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping
from typing import Annotated, ClassVar

from pydantic import Field

from combee_dspy.exceptions import ArgumentValueError, RefusedError
from combee_dspy.stopping._base import Limits, RunView, StoppingRule
from combee_dspy.strategies import parameters

_Count = Annotated[int, Field(gt=0)]
_Amount = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_UNKNOWN = {
    "dollars": "the price of a call that was made is not known",
    "gpu_seconds": "nobody counts the GPU-seconds of this run",
}

_READS_VALIDATION = frozenset({"validation_history"})


@parameters
class Budget(StoppingRule):
    """Stops when any one of its limits is reached.

    The search begins nothing that would pass a limit. Each LM call reserves its maximum cost first:
    by ``max_tokens`` and its prompt's length where its LM has a ``max_tokens``, else by the dearest
    call of its kind so far, or of any kind where the run has seen none of its own. Only what nobody
    knows beforehand passes a limit: a rollout that makes more calls than any before, what a tool
    adds to a prompt, a prompt that has more than twice as many tokens a byte as any before, or,
    without a ``max_tokens``, an effect dearer than any before. A run that has passed one says
    by how much. A run that was resumed has one budget: what its earlier parts spent counts.
    What was in flight when it was killed counts with the mean cost of its kind. So does a call
    whose answer never arrived or could not be read, unless the service turned it away (any 4xx,
    503, 529) or was never reached. What such effects and calls have cost beyond that may pass
    the limit. The report says by how much, if each call has cost twice the dearest of its kind,
    or as much as its ``max_tokens`` allow where that is less.

    A dollars budget needs the price of every model of the run: :func:`require_countable` refuses it
    before the first call where one is not known. Should a program then call a model without a price
    on its own, what has been spent is no longer known, and the run stops with that reason.

    Example:
        >>> from combee_dspy.stopping import Budget, RunView
        >>> Budget(rollouts=500).check(RunView(rollouts=500))
        'budget.rollouts is spent: 500 of 500'

    Args:
        rollouts: Rollouts bought.
        calls: LM calls sent to a service, those that it turned away included; answers of a cache
            are free. What an LM class that calls in a way of its own sends again within a call
            counts once, unless it has ``num_retries=0`` and raises instead.
        tokens: Prompt and completion tokens together, all roles.
        dollars: Dollars by the run's prices.
        seconds: Wall-clock seconds of the run, whatever it waits for or hangs in. Once they are
            over nothing begins; what is in flight has most of a second to end and is then given up,
            so that the run is over within two, with what it has learned by then. With a held-out
            set the search ends earlier, by twice what the reading may take and a second, half of
            the seconds at most. A reading that is not through in time leaves no figure: the report
            says so, and more seconds in the same ``log_dir`` go on with it.
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
            raise ArgumentValueError(
                "budget", None, "has no limit", f"Give at least one of {names}."
            )

    def limits(self) -> Limits:
        """Return its own limits."""
        return Limits(**{name: getattr(self, name) for name in self.params()})

    def needs(self) -> frozenset[str]:
        """Return those of ``dollars`` and ``gpu_seconds`` that have a limit."""
        return frozenset(name for name in _UNKNOWN if getattr(self, name) is not None)

    def check(self, view: RunView) -> str | None:
        """Return every limit that is reached or cannot be kept, with both figures, or ``None``."""
        return "; ".join(self._reached(view)) or None

    def _reached(self, view: RunView) -> Iterator[str]:
        for name in self.params():
            amount, most = getattr(view, name), getattr(self, name)
            if most is not None and amount is None:
                yield f"budget.{name} cannot be kept: {_UNKNOWN[name]}"
            elif most is not None and amount >= most:
                yield f"budget.{name} is spent: {_format(amount)} of {_format(most)}"


def _format(amount: float) -> str:
    # Four decimals of a hundredth of a cent would say nothing of it.
    return f"{amount:.2g}" if 0 < amount < 0.001 else f"{amount:,.4f}".rstrip("0").rstrip(".")


def require_countable(
    rule: StoppingRule | None, *, unpriced: Mapping[str, str], gpus: bool
) -> None:
    """Refuse a rule that decides by dollars or GPU-seconds where these cannot be known.

    Args:
        rule: The run's stopping rule, if it has one.
        unpriced: Name by role of every model whose price is not known.
        gpus: Whether the run knows of GPUs behind any of its models.

    Raises:
        ArgumentValueError: The rule decides by one of them, and it cannot be known.
    """
    needs = rule.needs() if rule else ()
    if "dollars" in needs and unpriced:
        listed = ", ".join(f"{model!r} ({role})" for role, model in unpriced.items())
        remedy = (
            f"Add a price for {next(iter(unpriced.values()))!r}, dollars per million tokens (0 for"
            " a server of your own), correct its name if it is misspelt, or set the budget in"
            " tokens."
        )
        problem = f"cannot be kept: no price is known for {listed}"
        raise ArgumentValueError("budget.dollars", dict(unpriced), problem, remedy)
    if "gpu_seconds" in needs and not gpus:
        remedy = "Say how many GPUs serve each role, or set the budget in seconds."
        raise ArgumentValueError(
            "budget.gpu_seconds", None, "cannot be kept: nobody counts GPU-seconds", remedy
        )


def require_validation(
    rule: StoppingRule | None, *, learned: Collection[str], compared: Collection[str]
) -> None:
    """Refuse a rule on validation scores where the search learns from validation rows.

    A score on rows that a search learns from rises after it has stopped to rise on others.

    Args:
        rule: The run's stopping rule, if it has one.
        learned: Hashes of the training rows.
        compared: Hashes of the validation rows; those of the training rows where a run has no
            others.

    Raises:
        RefusedError: The rule reads validation scores, and a training row is among their rows, or
            there are none.
    """
    shared = len(set(learned) & set(compared))
    if rule is None or not rule.needs() & _READS_VALIDATION or (compared and not shared):
        return
    reason = (
        f"{shared} of {len(set(compared))} validation rows are training rows"
        if compared
        else "there are no validation rows"
    )
    remedy = "Give a valset that shares no row with the trainset."
    raise RefusedError("patience or a target on the training score", reason, remedy)


@parameters
class Target(StoppingRule):
    """Stops when a candidate has reached a mean validation score.

    The target is soft: the update that reaches it is finished. The best of many candidates on one
    validation set is biased upwards, so the score that is reached here is no claim; the held-out
    set tells.

    Example:
        >>> from combee_dspy.stopping import RunView, Target
        >>> Target(0.9).check(RunView(validation_history=((-1, 0.5),))) is None
        True

    Args:
        score: Mean validation score, in the metric's units.
    """

    name: ClassVar[str] = "target"
    score: Annotated[float, Field(allow_inf_nan=False)]

    def needs(self) -> frozenset[str]:
        """Return that it reads validation scores."""
        return _READS_VALIDATION

    def check(self, view: RunView) -> str | None:
        """Return both figures once the best score is there, or ``None``."""
        best = max((score for _, score in view.validation_history), default=None)
        if best is None or best < self.score:
            return None
        return f"the target is reached: a validation score of {best:.4g} of {self.score:.4g}"


@parameters
class Patience(StoppingRule):
    """Stops when validation has not improved for a number of updates. How long a silent service is
    waited for is another thing: ``Search(patience=…)``.

    An improvement is a mean validation score more than ``min_delta`` above the last improvement's;
    many small steps count once together they exceed it. An update that validates nothing, since its
    children were refused, counts as one without improvement; one whose validation is not known yet
    does not count. The student's score is where counting begins.

    Patience on the training score is refused. Each minibatch holds other examples, so its score
    goes up and down with them; and what learns from examples gets better on them long after it has
    stopped to get better on others. Either way it would stop too early or never.

    Example:
        >>> from combee_dspy.stopping import Patience, RunView
        >>> Patience(2).check(RunView(updates=2, validation_history=((-1, 0.5),)))
        'patience is over: no validation score above 0.5 by more than 0 in 2 updates, of 2'

    Args:
        updates: Updates without improvement.
        min_delta: What a score must exceed the last improvement's by, in the metric's units.
        on: What is watched: ``"validation"``.
    """

    name: ClassVar[str] = "patience"
    updates: Annotated[int, Field(ge=1)]
    min_delta: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    on: str = "validation"

    def __post_init__(self) -> None:
        if self.on != "validation":
            problem = (
                "cannot be waited on: a training score changes with the minibatch, and rises on the"
                " examples that are learned from after it has stopped to rise on others"
                if self.on.startswith("train")
                else "is nothing that patience can wait on"
            )
            remedy = "Give on='validation', with a valset of its own."
            raise ArgumentValueError("patience.on", self.on, problem, remedy)

    def needs(self) -> frozenset[str]:
        """Return that it reads validation scores."""
        return _READS_VALIDATION

    def check(self, view: RunView) -> str | None:
        """Return how long there has been no improvement, or ``None``."""
        if not view.validation_history:
            return None
        at, best = view.validation_history[0]
        for update, score in view.validation_history[1:]:
            if score > best + self.min_delta:
                at, best = update, score
        waited = view.updates - view.unread - 1 - at
        if waited < self.updates:
            return None
        return (
            f"patience is over: no validation score above {best:.4g} by more than"
            f" {self.min_delta:g} in {waited} updates, of {self.updates}"
        )
