"""Presets: a known way to run, in one argument."""

from __future__ import annotations

from combee_dspy import Budget
from combee_dspy.aggregators import ParallelScan
from combee_dspy.controllers import PowerLaw
from combee_dspy.presets import paper
from tests.worlds import World


def test_the_papers_preset_learns_by_the_papers_parts() -> None:
    world = World.made()
    combee = world.combee(**paper(), budget=Budget(rollouts=120))
    assert (combee.settings.keep, combee.settings.staleness) == ("pareto", 0)
    assert combee.settings.aggregator == ParallelScan(placement="plain")
    assert combee.settings.controller == PowerLaw(profile=3)
    report = world.compile(**paper(), budget=Budget(rollouts=120)).combee_report
    assert report.best_score > report.seed_score
    assert report.updates >= 2
