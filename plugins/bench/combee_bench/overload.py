"""What one call of the simulated service takes in, by name."""

from __future__ import annotations

from collections.abc import Mapping

from combee_simulator import CapacityModel

__all__ = ["LAWS"]

LAWS: Mapping[str, CapacityModel] = {
    "attention": CapacityModel.attention(),
    "writing": CapacityModel.writing(),
    "reading": CapacityModel.reading(),
    "collapse": CapacityModel.collapse(),
    "dilution": CapacityModel.diluted(),
    "platitudes": CapacityModel.platitudes(),
    "unlimited": CapacityModel.unlimited(),
}
"""At most 12 items attended a call; at most 12 lessons written a call; items of about 5,000 tokens
attended a call, which is as many records of Formula but many more short lines; a call of more than
24 records keeps 8 % of them, by which the paper's result holds; a call of N items keeps N^(-0.55)
of them, by which it fails; no limit, by which no aggregator is needed.
"""
