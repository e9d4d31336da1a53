"""What fills the questions of formula-mini beside their figures: companies, people, sums and facts
that do not matter.
"""

from __future__ import annotations

import random
from decimal import Decimal
from fractions import Fraction

from combee_dspy.benchmarks.formula_mini.formulas import texts

SCENERY = texts("scenery")


def dollars(value: Fraction) -> str:
    """Return an amount such as ``$1,250`` or ``$2.40``."""
    return f"${Decimal(value.numerator) / value.denominator:,.{2 if value.denominator > 1 else 0}f}"


def name_company(stream: random.Random) -> str:
    """Return a company's name."""
    return f"{stream.choice(SCENERY['places'])} {stream.choice(SCENERY['trades'])}"


def describe_who(stream: random.Random) -> dict[str, str]:
    """Return a company, a person and a period, by their slots."""
    company, person = name_company(stream), stream.choice(SCENERY["people"])
    return {"c": company, "p": person, "when": stream.choice(SCENERY["periods"])}


def fill_slots(stream: random.Random) -> dict[str, str]:
    """Return a value for every slot of a routing question (see ``formulas.toml``)."""
    small = stream.randint(4, 40) * 5_000
    mid = small + stream.randint(4, 40) * 5_000
    big = mid + stream.randint(4, 80) * 5_000
    cost = stream.randint(4, 60) * 50
    price = cost + stream.randint(4, 80) * 50
    per = stream.randint(2, 30) * 20
    share = per * stream.randint(6, 24)
    low = stream.randint(4, 12)
    high = low + stream.randint(4, 16)
    who = describe_who(stream)
    sums = {"big": big, "mid": mid, "small": small, "sum": stream.randint(4, 80) * 250}
    cents = {"price": price, "cost": cost, "share": share, "per": per}
    return {
        **who,
        **{name: dollars(Fraction(value)) for name, value in sums.items()},
        **{name: dollars(Fraction(value, 100)) for name, value in cents.items()},
        "low": f"{low / 2:g}%",
        "high": f"{high / 2:g}%",
        "vol": f"{stream.randint(12, 48) / 2:g}%",
        "years": str(stream.randint(2, 12)),
        "units": f"{stream.randint(4, 80) * 2_500:,}",
        "beta": f"{stream.randint(5, 20) / 10:.1f}",
    }


def add_distractors(setting: str, level: int, stream: random.Random) -> list[str]:
    """Return facts that do not matter; none below level 3."""
    if level < 3:
        return []
    pool = SCENERY["distractors"]["firm" if setting in ("company", "share") else "private"]
    return [
        text.format(
            n=stream.randint(12, 480), k=stream.randint(2, 30), y=stream.randint(1950, 2015)
        )
        for text in stream.sample(pool, stream.randint(1, 2))
    ]
