"""How a canary stands, as a page for whoever decides about it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from combee_strategist.canary._decide import CanaryStatus
from combee_strategist.diagnosis.charts import Interval, intervals, progress
from combee_strategist.diagnosis.page import write_page

__all__ = ["write_canary_page"]


_MEANINGS: Mapping[str, str] = {
    "epsilon": "how much worse the challenger may be, in score units",
    "target": "the least held-out score",
    "level": "how often a worse challenger may be promoted, at most",
    "pairs": "the fewest scored pairs",
    "hours": "the least time of the trial",
    "errors": "share of failures, over the incumbent's, at which it is taken back",
    "score": "mean live score below which it is taken back",
    "window": "latest requests over which failures and scores are counted",
}


def write_canary_page(standing: CanaryStatus, place: Path) -> None:
    """Write how a canary stands as ``.md`` and ``.html``: its progress as bars, both versions and
    the audit.

    Raises:
        OSError: It cannot be written.
    """
    charts: dict[str, str] = {}
    terms = {} if standing.plan is None else standing.plan.to_dict()
    if standing.plan is not None:
        charts["progress"] = progress(
            [
                ("scored pairs", standing.pairs, standing.plan.pairs),
                ("hours", standing.hours, standing.plan.hours),
            ]
        )
    if standing.plan is not None and standing.pairs:
        limit = -standing.plan.epsilon
        difference = Interval(
            "challenger − incumbent",
            standing.low,
            standing.difference,
            standing.high,
            limit,
            "better" if standing.low > limit else "worse" if standing.high < limit else "unshown",
        )
        charts["difference"] = intervals([difference])
    write_page(
        place,
        "combee_strategist.canary",
        "canary.md.j2",
        charts,
        c=standing,
        headline=_headline(standing),
        terms={name: value for name, value in terms.items() if value is not None},
        meanings=_MEANINGS,
    )


def _headline(standing: CanaryStatus) -> str:
    if standing.challenger is None:
        return f"No version is on trial: {'; '.join(standing.missing)}."
    if not standing.missing:
        return f"Version {standing.challenger} may be promoted."
    return f"Version {standing.challenger} may not be promoted yet."
