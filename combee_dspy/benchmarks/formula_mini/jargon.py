"""Words of the trade for each formula: what a routing question of level 1 asks by."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["JARGON"]

JARGON: Mapping[str, tuple[str, ...]] = {
    "Current Ratio": ("liquidity ratio", "short-term cover"),
    "Gross Margin": ("gross profit rate", "mark-up share"),
    "Simple Interest": ("flat interest", "uncompounded interest"),
    "Dividend Yield": ("cash yield", "income return"),
    "Days Sales Outstanding": ("DSO", "collection period"),
    "Break-Even Point": ("BEP", "zero-profit volume"),
    "Interest Coverage": ("TIE", "times interest earned"),
    "Price-to-Earnings": ("P/E", "earnings multiple"),
    "Return on Equity": ("ROE", "return on owners' funds"),
    "Future Value": ("FV", "compound amount"),
    "Inventory Turnover": ("stock turn", "shelf turns"),
    "Debt-to-Equity": ("gearing", "D/E"),
    "Quick Ratio": ("acid test", "liquid cover"),
    "Contribution Margin": ("unit contribution", "throughput per unit"),
    "Operating Margin": ("EBIT margin", "return on sales"),
    "Net Profit Margin": ("bottom-line rate", "final margin"),
    "Present Value": ("PV", "discounted amount"),
    "Dividend Payout Ratio": ("distribution rate", "POR"),
    "Earnings per Share": ("EPS", "profit a share"),
    "Return on Assets": ("ROA", "return on total resources"),
    "Working Capital": ("net current assets", "liquid reserve"),
    "Price-to-Book": ("P/B", "book multiple"),
    "Capital Asset Pricing Model": ("CAPM", "beta-priced return"),
    "Sharpe Ratio": ("reward-to-variability", "return a unit of risk"),
    "Effective Annual Rate": ("AER", "true yearly rate"),
    "Gordon Growth Model": ("GGM", "growing-perpetuity price"),
    "Free Cash Flow": ("FCF", "cash after investment"),
    "Debt Service Coverage": ("DSCR", "loan cover"),
}
"""Formula name to two words of the trade, each used equally often."""
