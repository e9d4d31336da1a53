"""Names, periods and numbers that fill a question, drawn from one stream a row."""

from __future__ import annotations

import random

__all__ = ["company", "dollars", "period", "person", "route_slots"]

_PLACES = (
    "Harbor Lane", "Northgate", "Willow Creek", "Redstone", "Blue Heron", "Summit Ridge", "Old Mill", "Cedar Point",
    "Silver Fern", "Lakeside", "Copper Hill", "Maple Row", "Stonebridge", "Eastfield", "Golden Gate", "Quarry Road",
)  # fmt: skip
_TRADES = (
    "Bakery", "Textiles", "Robotics", "Furniture", "Brewery", "Motors", "Pharma", "Logistics", "Optics", "Paper",
    "Tools", "Foods", "Software", "Garden Supply", "Ceramics", "Energy",
)  # fmt: skip
_PEOPLE = (
    "Amara", "Bruno", "Chen", "Dalia", "Emil", "Farah", "Goran", "Hana", "Ivo", "Jasmin", "Kofi", "Lena", "Mateo",
    "Nadia", "Oskar", "Priya", "Quentin", "Rosa", "Samir", "Tove", "Uma", "Viktor", "Wanda", "Yusuf",
)  # fmt: skip
_PERIODS = (
    "last year", "in 2021", "in 2022", "in 2023", "in 2024", "over the past twelve months", "in its last fiscal year",
    "in the year to June",
)  # fmt: skip


def company(stream: random.Random) -> str:
    """Return a firm's name; one of 256."""
    return f"{stream.choice(_PLACES)} {stream.choice(_TRADES)}"


def person(stream: random.Random) -> str:
    """Return a first name."""
    return stream.choice(_PEOPLE)


def period(stream: random.Random) -> str:
    """Return an adverbial of one year."""
    return stream.choice(_PERIODS)


def dollars(cents: int) -> str:
    """Return an amount such as ``$1,250`` or ``$2.40``."""
    whole, rest = divmod(cents, 100)
    return f"${whole:,}" if rest == 0 else f"${whole:,}.{rest:02d}"


def route_slots(stream: random.Random) -> dict[str, str]:
    """Return a value for every slot of a routing question (see ``phrasings``)."""
    small = stream.randint(4, 40) * 5_000
    mid = small + stream.randint(4, 40) * 5_000
    big = mid + stream.randint(4, 80) * 5_000
    cost = stream.randint(4, 60) * 50
    price = cost + stream.randint(4, 80) * 50
    per = stream.randint(2, 30) * 20
    share = per * stream.randint(6, 24)
    low = stream.randint(4, 12)
    high = low + stream.randint(4, 16)
    return {
        "c": company(stream),
        "p": person(stream),
        "when": period(stream),
        "big": dollars(big * 100),
        "mid": dollars(mid * 100),
        "small": dollars(small * 100),
        "sum": dollars(stream.randint(4, 80) * 250_00),
        "price": dollars(price),
        "cost": dollars(cost),
        "share": dollars(share),
        "per": dollars(per),
        "low": f"{low / 2:g}%",
        "high": f"{high / 2:g}%",
        "vol": f"{stream.randint(12, 48) / 2:g}%",
        "years": str(stream.randint(2, 12)),
        "units": f"{stream.randint(4, 80) * 2_500:,}",
        "beta": f"{stream.randint(5, 20) / 10:.1f}",
    }
