"""The formulas of formula-mini, in the order in which ``formulas=N`` takes them.

Definitions are the usual textbook ones; a year has 365 days. The order puts
formulas of different kinds first, so that a small N is a small task, and
brings in near neighbours (gross, operating and net margin; current and quick
ratio) as N grows.
"""

from __future__ import annotations

from combee_dspy.benchmarks.formula_mini.records import Argument, FinanceFormula, Unit

__all__ = ["BY_NAME", "FORMULAS"]


def _arg(name: str, label: str, unit: Unit, span: str) -> Argument:
    low, high, step = span.split()
    return Argument(name, label, unit, low, high, step)


_REVENUE = _arg("revenue", "revenue", "money", "400000 2000000 100000")
_NET = _arg("net_income", "net income", "money", "40000 300000 20000")
_EQUITY = _arg("equity", "shareholders' equity", "money", "400000 2000000 100000")
_CURRENT_ASSETS = _arg("current_assets", "current assets", "money", "300000 900000 50000")
_CURRENT_LIABILITIES = _arg("current_liabilities", "current liabilities", "money", "100000 250000 25000")
_PRICE = _arg("price", "a selling price per unit", "unit-price", "40 120 5")
_VARIABLE = _arg("variable", "a variable cost per unit", "unit-price", "10 35 5")
_SHARE = _arg("share", "a share price", "unit-price", "20 120 4")
_PRINCIPAL = _arg("principal", "a principal", "money", "1000 20000 1000")
_RATE = _arg("rate", "an annual interest rate", "percent", "2 12 1")
_YEARS = _arg("years", "a term", "years", "2 5 1")
_FREE = _arg("free", "a risk-free rate", "percent", "1 4 0.5")

FORMULAS: tuple[FinanceFormula, ...] = (
    FinanceFormula(
        "Current Ratio",
        "current ratio",
        "how often everything liquid within a year covers what is due within a year",
        "company",
        "times",
        (_CURRENT_ASSETS, _CURRENT_LIABILITIES),
        lambda v: v["current_assets"] / v["current_liabilities"],
        ("current", "ratio"),
    ),
    FinanceFormula(
        "Gross Margin",
        "gross margin",
        "the share of sales left after the direct cost of the goods alone",
        "company",
        "percent",
        (_REVENUE, _arg("cost_of_goods", "cost of goods sold", "money", "200000 1200000 50000")),
        lambda v: (v["revenue"] - v["cost_of_goods"]) / v["revenue"] * 100,
        ("gross", "margin"),
        lambda v: v["cost_of_goods"] < v["revenue"],
    ),
    FinanceFormula(
        "Simple Interest",
        "simple interest",
        "what a loan costs when only the sum first lent bears a charge",
        "saver",
        "money",
        (_PRINCIPAL, _RATE, _YEARS),
        lambda v: v["principal"] * v["rate"] / 100 * v["years"],
        ("simple", "interest"),
    ),
    FinanceFormula(
        "Dividend Yield",
        "dividend yield",
        "the cash a share pays a year as a part of its price",
        "share",
        "percent",
        (_arg("dividend", "an annual dividend per share", "unit-price", "0.40 6 0.40"), _SHARE),
        lambda v: v["dividend"] / v["share"] * 100,
        ("dividend", "yield"),
    ),
    FinanceFormula(
        "Days Sales Outstanding",
        "days sales outstanding",
        "how long customers take to pay their invoices",
        "company",
        "days",
        (
            _arg("receivables", "accounts receivable", "money", "20000 200000 20000"),
            _arg("credit_sales", "annual credit sales", "money", "365000 1460000 73000"),
        ),
        lambda v: v["receivables"] / v["credit_sales"] * 365,
        ("days sales", "outstanding", "dso"),
    ),
    FinanceFormula(
        "Break-Even Point",
        "break-even point in units",
        "how many units must be sold before fixed costs are recovered",
        "product",
        "units",
        (_arg("fixed", "fixed costs", "money", "20000 200000 20000"), _PRICE, _VARIABLE),
        lambda v: v["fixed"] / (v["price"] - v["variable"]),
        ("break", "even", "point"),
    ),
    FinanceFormula(
        "Interest Coverage",
        "interest coverage ratio",
        "how often operating profit pays the interest bill alone",
        "company",
        "times",
        (
            _arg("ebit", "earnings before interest and taxes", "money", "200000 900000 50000"),
            _arg("interest", "interest expense", "money", "20000 120000 20000"),
        ),
        lambda v: v["ebit"] / v["interest"],
        ("coverage", "cover", "covers"),
    ),
    FinanceFormula(
        "Price-to-Earnings",
        "price-to-earnings ratio",
        "what investors pay for each dollar of yearly profit per share",
        "share",
        "times",
        (_SHARE, _arg("eps", "annual earnings per share", "unit-price", "1 8 0.40")),
        lambda v: v["share"] / v["eps"],
        ("price-to-earnings", "p/e", "earnings", "ratio"),
    ),
    FinanceFormula(
        "Return on Equity",
        "return on equity",
        "profit as a part of what the owners have put in and left in",
        "company",
        "percent",
        (_NET, _EQUITY),
        lambda v: v["net_income"] / v["equity"] * 100,
        ("return", "equity"),
    ),
    FinanceFormula(
        "Future Value",
        "future value with annual compounding",
        "what a sum grows to when its interest earns interest",
        "saver",
        "money",
        (_PRINCIPAL, _RATE, _YEARS),
        lambda v: v["principal"] * (1 + v["rate"] / 100) ** int(v["years"]),
        ("future", "value"),
    ),
    FinanceFormula(
        "Inventory Turnover",
        "inventory turnover",
        "how many times a year the stock is sold and replaced",
        "company",
        "times",
        (
            _arg("cost_of_goods", "annual cost of goods sold", "money", "300000 1500000 100000"),
            _arg("inventory", "average inventory", "money", "40000 200000 20000"),
        ),
        lambda v: v["cost_of_goods"] / v["inventory"],
        ("inventory", "turnover"),
    ),
    FinanceFormula(
        "Debt-to-Equity",
        "debt-to-equity ratio",
        "what is owed to lenders for each dollar that owners hold",
        "company",
        "times",
        (_arg("debt", "total debt", "money", "200000 2400000 100000"), _EQUITY),
        lambda v: v["debt"] / v["equity"],
        ("debt", "equity"),
    ),
    FinanceFormula(
        "Quick Ratio",
        "quick ratio",
        "how often liquid means cover what is due within a year, unsold stock left out",
        "company",
        "times",
        (_CURRENT_ASSETS, _arg("inventory", "inventory", "money", "50000 200000 25000"), _CURRENT_LIABILITIES),
        lambda v: (v["current_assets"] - v["inventory"]) / v["current_liabilities"],
        ("quick", "ratio", "acid"),
    ),
    FinanceFormula(
        "Contribution Margin",
        "contribution margin per unit",
        "what one more unit leaves after its own variable costs",
        "product",
        "money",
        (_PRICE, _VARIABLE),
        lambda v: v["price"] - v["variable"],
        ("contribution", "margin"),
    ),
    FinanceFormula(
        "Operating Margin",
        "operating margin",
        "the share of sales left after goods and overheads, before loans and tax",
        "company",
        "percent",
        (_arg("operating", "operating income", "money", "40000 350000 20000"), _REVENUE),
        lambda v: v["operating"] / v["revenue"] * 100,
        ("operating", "margin"),
    ),
    FinanceFormula(
        "Net Profit Margin",
        "net profit margin",
        "the share of sales left after every cost, interest and tax included",
        "company",
        "percent",
        (_NET, _REVENUE),
        lambda v: v["net_income"] / v["revenue"] * 100,
        ("net", "margin"),
    ),
    FinanceFormula(
        "Present Value",
        "present value",
        "what a later payment is worth today",
        "saver",
        "money",
        (
            _arg("amount", "a future payment", "money", "1000 20000 1000"),
            _arg("rate", "an annual discount rate", "percent", "2 12 1"),
            _YEARS,
        ),
        lambda v: v["amount"] / (1 + v["rate"] / 100) ** int(v["years"]),
        ("present", "value"),
    ),
    FinanceFormula(
        "Dividend Payout Ratio",
        "dividend payout ratio",
        "the part of profit handed to shareholders",
        "company",
        "percent",
        (_arg("dividends", "dividends paid", "money", "10000 120000 5000"), _NET),
        lambda v: v["dividends"] / v["net_income"] * 100,
        ("dividend", "payout", "ratio"),
        lambda v: v["dividends"] < v["net_income"],
    ),
    FinanceFormula(
        "Earnings per Share",
        "earnings per share",
        "the profit that belongs to each common share",
        "company",
        "money",
        (
            _NET,
            _arg("preferred", "preferred dividends", "money", "5000 30000 5000"),
            _arg("shares", "common shares outstanding", "count", "10000 100000 5000"),
        ),
        lambda v: (v["net_income"] - v["preferred"]) / v["shares"],
        ("earnings", "per share", "eps"),
    ),
    FinanceFormula(
        "Return on Assets",
        "return on assets",
        "profit as a part of everything the firm owns and uses",
        "company",
        "percent",
        (_NET, _arg("assets", "total assets", "money", "800000 4000000 200000")),
        lambda v: v["net_income"] / v["assets"] * 100,
        ("return", "assets", "asset"),
    ),
    FinanceFormula(
        "Working Capital",
        "working capital",
        "the dollars left of liquid means once all short-term bills are paid",
        "company",
        "money",
        (_CURRENT_ASSETS, _CURRENT_LIABILITIES),
        lambda v: v["current_assets"] - v["current_liabilities"],
        ("working", "capital"),
    ),
    FinanceFormula(
        "Price-to-Book",
        "price-to-book ratio",
        "what investors pay for each dollar of net worth in the accounts",
        "share",
        "times",
        (_SHARE, _arg("book", "book value per share", "unit-price", "8 60 4")),
        lambda v: v["share"] / v["book"],
        ("price-to-book", "p/b", "book", "ratio"),
    ),
    FinanceFormula(
        "Capital Asset Pricing Model",
        "expected return by the capital asset pricing model",
        "the return to demand of a stock, given how it moves with the market",
        "portfolio",
        "percent",
        (
            _FREE,
            _arg("beta", "a beta", "factor", "0.5 2 0.1"),
            _arg("market", "an expected market return", "percent", "6 12 0.5"),
        ),
        lambda v: v["free"] + v["beta"] * (v["market"] - v["free"]),
        ("capital asset", "capm", "pricing", "model"),
    ),
    FinanceFormula(
        "Sharpe Ratio",
        "Sharpe ratio",
        "the gain above safe bills for each point of volatility",
        "portfolio",
        "times",
        (
            _arg("return", "an annual return", "percent", "7 18 0.5"),
            _FREE,
            _arg("deviation", "a standard deviation of returns", "percent", "6 24 1"),
        ),
        lambda v: (v["return"] - v["free"]) / v["deviation"],
        ("sharpe", "ratio"),
    ),
    FinanceFormula(
        "Effective Annual Rate",
        "effective annual rate",
        "what a quoted rate comes to once compounding within the year counts",
        "saver",
        "percent",
        (
            _arg("nominal", "a nominal annual rate", "percent", "4 24 2"),
            _arg("periods", "compounding periods per year", "count", "2 12 2"),
        ),
        lambda v: ((1 + v["nominal"] / 100 / v["periods"]) ** int(v["periods"]) - 1) * 100,
        ("effective", "annual rate"),
    ),
    FinanceFormula(
        "Gordon Growth Model",
        "fair share price by the Gordon growth model",
        "what a share is worth when its payment rises at a steady rate for ever",
        "share",
        "money",
        (
            _arg("next_dividend", "next year's dividend per share", "unit-price", "1 6 0.40"),
            _arg("required", "a required return", "percent", "8 14 1"),
            _arg("growth", "a constant dividend growth rate", "percent", "1 5 1"),
        ),
        lambda v: v["next_dividend"] / ((v["required"] - v["growth"]) / 100),
        ("gordon", "model", "discount"),
    ),
    FinanceFormula(
        "Free Cash Flow",
        "free cash flow",
        "the cash left from running the business after buying equipment",
        "company",
        "money",
        (
            _arg("operations", "cash flow from operations", "money", "200000 900000 50000"),
            _arg("capital", "capital expenditures", "money", "50000 180000 10000"),
        ),
        lambda v: v["operations"] - v["capital"],
        ("free", "cash flow"),
    ),
    FinanceFormula(
        "Debt Service Coverage",
        "debt service coverage ratio",
        "how often income pays a whole year of loan instalments, repayment and interest together",
        "company",
        "times",
        (
            _arg("income", "net operating income", "money", "150000 900000 50000"),
            _arg("service", "annual principal and interest payments", "money", "50000 250000 25000"),
        ),
        lambda v: v["income"] / v["service"],
        ("debt", "service", "coverage", "cover", "covers"),
    ),
)
"""All formulas. Their order is part of the task: a new one goes to the end."""

BY_NAME: dict[str, FinanceFormula] = {formula.name: formula for formula in FORMULAS}
