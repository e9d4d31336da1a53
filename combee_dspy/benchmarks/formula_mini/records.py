"""What a formula is made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

__all__ = ["Argument", "FinanceFormula", "Setting", "Unit", "Values", "always", "rounded"]

Unit = Literal["money", "unit-price", "percent", "count", "years", "factor"]
"""``money`` is a firm's or person's sum, ``unit-price`` dollars a unit or share, ``percent`` 5 for 5 %."""

Setting = Literal["company", "share", "product", "saver", "portfolio"]
"""Who or what a question is about: it decides which sentences fit."""

Values = Mapping[str, Fraction]


@dataclass(frozen=True, slots=True)
class Argument:
    """One quantity a formula needs.

    Attributes:
        name: Its name in :attr:`FinanceFormula.function`.
        label: The noun phrase for it in a question, with its article where it needs one.
        unit: Its unit.
        low: Smallest value, a decimal.
        high: Largest value, a decimal.
        step: Distance between possible values at level 1, a decimal; a quarter
            of it at the other levels, except for counts and years.
    """

    name: str
    label: str
    unit: Unit
    low: str
    high: str
    step: str


def always(values: Values) -> bool:
    """Accept any values."""
    return True


@dataclass(frozen=True, slots=True)
class FinanceFormula:
    """One formula.

    Attributes:
        name: Its name: the answer of the routing task.
        phrase: Its name inside a sentence.
        tell: What a question that calls for it asks for, as a noun phrase.
        setting: What its questions are about.
        unit: Unit of the result; ``percent`` results are percentages, 5 for 5 %.
        arguments: What it needs.
        function: The result, in exact rational arithmetic.
        giveaways: Words that no routing question for it may hold, in lower case.
        valid: Whether drawn values make sense together.
    """

    name: str
    phrase: str
    tell: str
    setting: Setting
    unit: Literal["money", "percent", "times", "days", "units"]
    arguments: tuple[Argument, ...]
    function: Callable[[Values], Fraction]
    giveaways: tuple[str, ...]
    valid: Callable[[Values], bool] = always


def rounded(value: Fraction) -> str:
    """Return an exact value with two decimals, halves away from zero."""
    cents = (abs(value) * 100 + Fraction(1, 2)) // 1
    sign = "-" if value < 0 and cents else ""
    return f"{sign}{cents // 100}.{cents % 100:02d}"
