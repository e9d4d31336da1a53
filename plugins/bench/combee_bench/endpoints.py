"""Where the calls of what is measured go, and what they came to."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import dspy

from combee_dspy.costs import Costs, Meter, Price, Tariff, metered, role_scope, totals
from combee_dspy.exceptions import ArgumentValueError
from combee_simulator import SimulatedConfig, SimulatedService, SimulatedTask, Tally

__all__ = ["Counted", "Endpoint", "as_proposer", "model_endpoint", "model_lm", "simulated_endpoint"]


@dataclass(slots=True)
class Counted:
    """What was asked while something was measured; filled in when it is over.

    Attributes:
        tallies: Calls and tokens by what was asked: ``task``, ``reflect`` or ``other``.
        dollars: Dollars; ``None`` where the price of a call is not known.
        busy_seconds: Simulated seconds that slots were held, summed; ``None`` where nobody knows.
        spent: Returns the tokens and the dollars so far; of a model's calls alone.
    """

    tallies: dict[str, Tally] = field(default_factory=dict)
    dollars: float | None = None
    busy_seconds: float | None = None
    spent: Callable[[], tuple[int, float | None]] = lambda: (0, 0.0)

    @property
    def tokens(self) -> int:
        """All tokens."""
        return sum(tally.prompt_tokens + tally.completion_tokens for tally in self.tallies.values())


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The LMs that every method is given, all on one service.

    Attributes:
        task_lm: Answers the program's calls.
        reflection_lm: Writes.
        reading_lm: Answers what the held-out set asks as ``task_lm`` would, without waiting where
            that may be.
        time_scale: Wall seconds of one second that is reported.
        adapter: DSPy's adapter; ``None`` for its default.
        service: The simulated service; ``None`` for a model's.
        reading: The service behind ``reading_lm``; ``None`` where that is ``task_lm``.
        price: Of every model; ``None`` for list prices.
        costs: Prices by model, where there is no ``price``.
    """

    task_lm: dspy.LM
    reflection_lm: dspy.LM
    reading_lm: dspy.LM
    time_scale: float = 1.0
    adapter: Any = None
    service: SimulatedService | None = None
    reading: SimulatedService | None = None
    price: Price | None = None
    costs: Costs | None = None

    def settings(self, lm: dspy.LM | None = None) -> dict[str, Any]:
        """Return what DSPy is told while a program runs."""
        return {
            "lm": lm or self.task_lm,
            **({} if self.adapter is None else {"adapter": self.adapter}),
        }

    @contextmanager
    def counting(self) -> Iterator[Counted]:
        """Count what is asked inside the ``with`` block."""
        counted = Counted()
        if self.service is None:
            models = {str(lm.model) for lm in (self.task_lm, self.reflection_lm)}
            prices = {} if self.price is None else dict.fromkeys(models, self.price)
            with metered(Tariff(self.costs or Costs(prices=prices))) as meter:
                counted.spent = partial(_spent, meter)
                yield counted
            sums_by_role = totals(meter.usage())
            counted.dollars = sums_by_role.total.dollars
            for role, sums in sums_by_role.by_role.items():
                kind = "task" if role in ("task", "serving") else "reflect"
                own = Tally(sums.calls, sums.prompt_tokens, sums.completion_tokens)
                counted.tallies[kind] = counted.tallies.get(kind, Tally()) + own
            return
        for service in (self.service, self.reading):
            if service is not None:
                service.reset_stats()
                # A further draw is one of the same request: what was asked before must not make it
                # one.
                service.forget_attempts()
        yield counted
        stats = self.service.stats()
        counted.tallies = {name: tally for name, tally in stats.by_kind.items() if tally.calls}
        counted.busy_seconds = stats.slot_busy_seconds
        if self.price is not None:
            counted.dollars = self.price.dollars(stats.prompt_tokens, stats.completion_tokens)


def _spent(meter: Meter) -> tuple[int, float | None]:
    sums = totals(meter.usage()).total
    return sums.prompt_tokens + sums.completion_tokens, sums.dollars


@contextmanager
def simulated_endpoint(
    config: SimulatedConfig,
    task: SimulatedTask,
    *,
    temperature: float | None = None,
    price: Price | None = None,
) -> Iterator[Endpoint]:
    """Serve a task on this machine, and once more without latencies for what is not timed."""
    settings = {} if temperature is None else {"temperature": temperature}
    at_once = replace(config, time_scale=0.0, port=0)
    with SimulatedService(config, task) as service, SimulatedService(at_once, task) as reading:
        lm, reader = service.lm(**settings), reading.lm(**settings)
        scale = config.time_scale or 1.0
        yield Endpoint(lm, lm, reader, scale, service=service, reading=reading, price=price)


def model_endpoint(
    lm: str,
    reflection_lm: str | None = None,
    *,
    api_base: str | None = None,
    api_key_env: str | None = None,
    temperature: float | None = None,
    slots: int = 4,
    price: Price | None = None,
) -> Endpoint:
    """Return the endpoint of a model: ``"embedded"``, or one by DSPy's name.

    Raises:
        ArgumentValueError: ``api_key_env`` is not set in the environment.
    """
    settings: dict[str, Any] = {} if temperature is None else {"temperature": temperature}
    where: dict[str, Any] = {
        "slots": slots,
        "api_base": api_base,
        "api_key_env": api_key_env,
        **settings,
    }
    task, adapter = model_lm(lm, **where)
    writing, _ = model_lm(reflection_lm or lm, **where)
    return Endpoint(task, as_proposer(writing), task, adapter=adapter, price=price)


def model_lm(
    name: str,
    *,
    slots: int = 4,
    api_base: str | None = None,
    api_key_env: str | None = None,
    **settings: Any,
) -> tuple[dspy.LM, Any]:
    """Return an LM, with the adapter that it needs or ``None``."""
    if name == "embedded":
        from combee_dspy.lms import ChoiceAdapter, embedded

        # An adapter that chooses among labels where the task is a choice, and answers in JSON
        # elsewhere.
        return embedded(slots=slots, **settings), ChoiceAdapter()
    if api_base is not None:
        settings["api_base"] = api_base
    if api_key_env is not None:
        key = os.environ.get(api_key_env)
        if not key:
            remedy = f"Run: export {api_key_env}=…"
            raise ArgumentValueError(
                "api_key_env", api_key_env, "is not set in the environment", remedy
            )
        settings["api_key"] = key
    # A call that DSPy answers from its cache takes no time: it would flatter whoever runs later.
    return dspy.LM(name, cache=False, **settings), None


def as_proposer(lm: dspy.LM) -> dspy.LM:
    """Count an LM's calls as the proposer's, since DSPy's optimizers name no role."""
    kind: Any = type(lm)

    class CountedLM(kind):
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            with role_scope("proposer"):
                return super().__call__(*args, **kwargs)

        async def acall(self, *args: Any, **kwargs: Any) -> Any:
            with role_scope("proposer"):
                return await super().acall(*args, **kwargs)

    lm.__class__ = CountedLM
    return lm
