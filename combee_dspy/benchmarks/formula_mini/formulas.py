"""The formulas of formula-mini: what they compute. Their names, words and questions stand in
``formulas.toml``.
"""

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
    """One quantity a formula needs: ``span`` is its smallest and largest value, and the step
    between values.
    """

    name: str
    label: str
    unit: Literal["money", "unit-price", "percent", "count", "years", "factor"]
    span: tuple[Fraction, Fraction, Fraction]


@dataclass(frozen=True, slots=True)
class FinanceFormula:
    """One formula, its function in exact rational arithmetic. ``formulas.toml`` says what each
    field means.
    """

    name: str
    phrase: str
    tell: str
    setting: Literal["company", "share", "product", "saver", "portfolio"]
    unit: Literal["money", "percent", "times", "days", "units"]
    arguments: tuple[Argument, ...]
    giveaways: list[str]
    jargon: list[str]
    questions: list[str]
    function: Callable[[Values], Fraction]


PARTS: Mapping[str, tuple[str, str]] = {
    "Gross Margin": ("cost_of_goods", "revenue"),
    "Dividend Payout Ratio": ("dividends", "net_income"),
}
"""Formulas of a part and its whole, which must be larger."""

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
    "Effective Annual Rate": lambda v: (
        ((1 + v["nominal"] / 100 / v["periods"]) ** int(v["periods"]) - 1) * 100
    ),
    "Gordon Growth Model": lambda v: v["next_dividend"] / ((v["required"] - v["growth"]) / 100),
    "Free Cash Flow": lambda v: v["operations"] - v["capital"],
    "Debt Service Coverage": lambda v: v["income"] / v["service"],
}


def texts(name: str) -> dict[str, Any]:
    """Return one of the TOML files beside this module."""
    return tomllib.loads(Path(__file__).with_name(f"{name}.toml").read_text(encoding="utf-8"))


def _formula(data: dict[str, Any]) -> FinanceFormula:
    arguments = [
        Argument(name, label, unit, tuple(map(Fraction, span.split())))  # type: ignore[arg-type]  # three
        for name, label, unit, span in data.pop("arguments")
    ]
    return FinanceFormula(**data, arguments=tuple(arguments), function=_FUNCTIONS[data["name"]])


BY_NAME: Mapping[str, FinanceFormula] = {
    data["name"]: _formula(data) for data in texts("formulas")["formula"]
}
"""All formulas, in the order in which ``formulas=N`` takes them."""
