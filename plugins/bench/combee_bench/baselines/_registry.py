"""Baselines by name: of this distribution, or published by any other."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import metadata

from combee_bench.baselines._base import Baseline
from combee_dspy.exceptions import PluginError, UnknownStrategyError

__all__ = ["baseline_names", "build_baseline"]

_GROUP = "combee_dspy.baselines"
_OWN: Mapping[str, str] = {
    "ace": "combee_bench.baselines._ace:Ace",
    "combee": "combee_bench.baselines._combee:CombeeBaseline",
    "combee-playbook": "combee_bench.baselines._combee:CombeePlaybook",
    "gepa": "combee_bench.baselines._gepa:Gepa",
    "mipro": "combee_bench.baselines._mipro:Mipro",
}


def _points() -> dict[str, metadata.EntryPoint]:
    own = {name: metadata.EntryPoint(name, target, _GROUP) for name, target in _OWN.items()}
    return {**{point.name: point for point in metadata.entry_points(group=_GROUP)}, **own}


def baseline_names() -> tuple[str, ...]:
    """Return the names of all baselines that are installed, loading nothing."""
    return tuple(sorted(_points()))


def build_baseline(name: str) -> Baseline:
    """Return a baseline by name, with its defaults.

    Raises:
        UnknownStrategyError: Nothing is published under this name.
        PluginError: It is published but cannot be loaded.
    """
    point = _points().get(name)
    if point is None:
        raise UnknownStrategyError("baseline", name, baseline_names())
    distribution = point.dist.name if point.dist else "combee-bench"
    try:
        baseline = point.load()
    except Exception as error:
        raise PluginError(
            "baseline", name, distribution, f"{type(error).__name__}: {error}"
        ) from error
    if not (isinstance(baseline, type) and issubclass(baseline, Baseline)):
        raise PluginError(
            "baseline",
            name,
            distribution,
            f"{point.value} is not a subclass of {Baseline.__name__}",
        )
    return baseline()
