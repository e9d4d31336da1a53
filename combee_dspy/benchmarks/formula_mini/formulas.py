"""The formulas of formula-mini: what they compute. Their names, words and questions stand in ``formulas.toml``."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

Values = Mapping[str, Fraction]
"""One value an argument, by its name."""


@dataclass(frozen=True, slots=True)
class Argument:
    """One quantity a formula needs: ``span`` is its smallest and largest value, and the step between values."""

    name: str
    label: str
    unit: Literal["money", "unit-price", "percent", "count", "years", "factor"]
    span: tuple[Fraction, Fraction, Fraction]


@dataclass(frozen=True, slots=True)
class FinanceFormula:
    """One formula, its function in exact rational arithmetic. ``formulas.toml`` says what each field means."""

    name: str
    phrase: str
    tell: str
    setting: Literal["company", "share", "product", "saver", "portfolio"]
    unit: Literal["money", "percent", "times", "days", "units"]
    arguments: tuple[Argument, ...]
    giveaways: tuple[str, ...]
    jargon: tuple[str, ...]
    questions: tuple[str, ...]
    function: Callable[[Values], Fraction]

    def holds_for(self, values: Values) -> bool:
        """Tell whether drawn values make sense together."""
        larger, smaller = _PARTS.get(self.name, ("", ""))
        return not larger or values[smaller] < values[larger]


_PARTS: Mapping[str, tuple[str, str]] = {
    "Gross Margin": ("revenue", "cost_of_goods"),
    "Dividend Payout Ratio": ("net_income", "dividends"),
}
"""Formulas of a whole and a part of it, which must be smaller."""

_FUNCTIONS: Mapping[str, Callable[[Values], Fraction]] = {
    "Current Ratio": lambda v: v["current_assets"] / v["current_liabilities"],
    "Gross Margin": lambda v: (v["revenue"] - v["cost_of_goods"]) / v["revenue"] * 100,
    "Simple Interest": lambda v: v["principal"] * v["rate"] / 100 * v["years"],
    "Dividend Yield": lambda v: v["dividend"] / v["share"] * 100,
    "Days Sales Outstanding": lambda v: v["receivables"] / v["credit_sales"] * 365,
    "Break-Even Point": lambda v: v["fixed"] / (v["price"] - v["variable"]),
    "Interest Coverage": lambda v: v["ebit"] / v["interest"],
    "Price-to-Earnings": lambda v: v["share"] / v["eps"],
    "Return on Equity": lambda v: v["net_income"] / v["equity"] * 100,
    "Future Value": lambda v: v["principal"] * (1 + v["rate"] / 100) ** int(v["years"]),
    "Inventory Turnover": lambda v: v["cost_of_goods"] / v["inventory"],
    "Debt-to-Equity": lambda v: v["debt"] / v["equity"],
    "Quick Ratio": lambda v: (v["current_assets"] - v["inventory"]) / v["current_liabilities"],
    "Contribution Margin": lambda v: v["price"] - v["variable"],
    "Operating Margin": lambda v: v["operating"] / v["revenue"] * 100,
    "Net Profit Margin": lambda v: v["net_income"] / v["revenue"] * 100,
    "Present Value": lambda v: v["amount"] / (1 + v["rate"] / 100) ** int(v["years"]),
    "Dividend Payout Ratio": lambda v: v["dividends"] / v["net_income"] * 100,
    "Earnings per Share": lambda v: (v["net_income"] - v["preferred"]) / v["shares"],
    "Return on Assets": lambda v: v["net_income"] / v["assets"] * 100,
    "Working Capital": lambda v: v["current_assets"] - v["current_liabilities"],
    "Price-to-Book": lambda v: v["share"] / v["book"],
    "Capital Asset Pricing Model": lambda v: v["free"] + v["beta"] * (v["market"] - v["free"]),
    "Sharpe Ratio": lambda v: (v["return"] - v["free"]) / v["deviation"],
    "Effective Annual Rate": lambda v: ((1 + v["nominal"] / 100 / v["periods"]) ** int(v["periods"]) - 1) * 100,
    "Gordon Growth Model": lambda v: v["next_dividend"] / ((v["required"] - v["growth"]) / 100),
    "Free Cash Flow": lambda v: v["operations"] - v["capital"],
    "Debt Service Coverage": lambda v: v["income"] / v["service"],
}


def texts(name: str) -> dict[str, Any]:
    """Return one of the TOML files beside this module."""
    return tomllib.loads(Path(__file__).with_name(f"{name}.toml").read_text(encoding="utf-8"))


def rounded(value: Fraction) -> str:
    """Return an exact value with two decimals, halves away from zero."""
    cents = (abs(value) * 100 + Fraction(1, 2)) // 1
    sign = "-" if value < 0 and cents else ""
    return f"{sign}{cents // 100}.{cents % 100:02d}"


def _formula(data: Mapping[str, Any]) -> FinanceFormula:
    arguments = [
        Argument(name, label, unit, tuple(Fraction(item) for item in span.split()))  # type: ignore[arg-type]  # three
        for name, label, unit, span in data["arguments"]
    ]
    lists = {name: tuple(data[name]) for name in ("giveaways", "jargon", "questions")}
    function = _FUNCTIONS[data["name"]]
    return FinanceFormula(**{**data, **lists, "arguments": tuple(arguments), "function": function})


FORMULAS: tuple[FinanceFormula, ...] = tuple(_formula(data) for data in texts("formulas")["formula"])
"""All formulas, in the order in which ``formulas=N`` takes them."""

BY_NAME: dict[str, FinanceFormula] = {formula.name: formula for formula in FORMULAS}
