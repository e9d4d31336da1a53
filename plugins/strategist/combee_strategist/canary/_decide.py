"""Whether a challenger may be promoted: a sequential test over paired scores.

And moving the alias.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from combee_dspy.events import ShadowsCounted
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.files import file_name
from combee_dspy.journal import RunHistory
from combee_strategist.canary._events import open_journals
from combee_strategist.canary._evidence import TrialEvidence, serves
from combee_strategist.canary._registry import CHALLENGER, PRODUCTION, CanaryPlan, Registry
from combee_strategist.exceptions import PromotionRefusedError

__all__ = ["CanaryStatus", "interval", "promote", "rollback", "status", "withdraw"]

# Stakes of the gambler against a mean m, as shares of the most that one may lose on a pair: capital
# stays positive for differences of −1 to 1 where the stake is below 1 / (1 + m). The best stake for
# a mean μ and a variance v is near (μ − m) / v, and half or double of it costs little. A stake λ
# decides after about 9 / (λ² v) pairs: smaller ones than these would need over 90,000 where 10 % of
# pairs differ, and cost all others.
_STAKES = 0.98 * 0.4 ** np.arange(5)


def interval(differences: Sequence[float], level: float = 0.05) -> tuple[float, float]:
    """Return bounds of the mean of paired differences that hold at all times at once.

    Capital of a gambler who bets against a mean m is Π(1 + λ(dᵢ − m)), and the mean of this over
    stakes λ, each a share of 1 / (1 + m), is capital too. If the mean is m or less, it ever reaches
    1/level with a probability of at most ``level`` (Ville's inequality), however often it is looked
    at and for whatever reason one stops. The lower bound is the largest m that is refuted, the
    upper one the same of −d.
    Source: Waudby-Smith and Ramdas, "Estimating means of bounded random variables by betting",
    JRSS-B 86 (2024), sections 4 and 5; with a fixed mixture of stakes, so that order does not
    matter.

    It is assumed that each difference has the same mean given those before it: requests of one kind
    of traffic, and labels that come, or not, whatever the answers were.

    Args:
        differences: Challenger minus incumbent, from −1 to 1.
        level: How often each bound, alone, may fail.

    Returns:
        The two bounds, from −1 to 1; exactly these two without a difference.
    """
    values, counts = np.unique(np.asarray(differences, dtype=float), return_counts=True)
    return _lower(values, counts, level), -_lower(-values, counts, level)


def _lower(values: Any, counts: Any, level: float) -> float:
    low, high = -1.0, 1.0
    for _ in range(30):
        middle = (low + high) / 2
        capital = np.log1p(_STAKES[:, None] / (1 + middle) * (values - middle)) @ counts
        if np.logaddexp.reduce(capital) - math.log(len(_STAKES)) >= -math.log(level):
            low = middle
        else:
            high = middle
    return low


@dataclass(frozen=True, slots=True)
class CanaryStatus:
    """How a canary stands.

    Attributes:
        name: The program's name in the registry.
        production: The version that serves.
        challenger: The version on trial, else ``None``.
        plan: The terms, as they were published.
        heldout: Held-out score of the challenger, from its receipt.
        pairs: Requests that both answered and that were scored; the same request id counts once.
        difference: Mean of challenger minus incumbent; NaN without a pair.
        low: Lower bound; it fails with a probability of at most ``plan.level``, however often it is
            looked at.
        high: Upper bound, alike.
        hours: From the first of these requests to the last.
        shadows: What became of shadows, of all servers.
        versions: By version: requests, errors, seconds, tokens, dollars, score.
        missing: Why the challenger may not be promoted now; empty where it may.
        audit: Every change, oldest first.
    """

    name: str
    production: int | None
    challenger: int | None
    plan: CanaryPlan | None = None
    heldout: float | None = None
    pairs: int = 0
    difference: float = math.nan
    low: float = -1.0
    high: float = 1.0
    hours: float = 0.0
    shadows: Mapping[str, int] = field(default_factory=dict)
    versions: tuple[Mapping[str, Any], ...] = ()
    missing: tuple[str, ...] = ()
    audit: tuple[Mapping[str, Any], ...] = ()


def status(
    registry: Registry,
    log_dir: Path | str | None = None,
    earlier: Sequence[float] = (),
    evidence: TrialEvidence | None = None,
) -> CanaryStatus:
    """Return how a canary stands. Changes nothing; may be asked as often as one likes.

    Args:
        registry: Where the versions are.
        log_dir: Where the journals of the servers lie; ``combee_serving/NAME`` by default.
        earlier: Differences on rows that neither taught nor chose the challenger: pairs too. With
            them the hours count from the first shadow to the last, labelled or not.
        evidence: What was read of ``log_dir`` before, for somebody who asks every minute. Without
            ``shadows`` and ``versions``, which are read of all that was ever served.

    Raises:
        RegistryError: It does not answer, or the challenger is not as it was published.
    """
    production, challenger = registry.at(PRODUCTION), registry.at(CHALLENGER)
    audit = tuple(registry.audit())
    missing = []
    if production is not None and production != _placed(audit):
        missing.append(f"version {production} is in production, and no audit line put it there")
    if challenger in (None, production) or production is None:
        missing.append(
            "nothing is published" if production is None else "no challenger is on trial"
        )
        return CanaryStatus(registry.name, production, None, missing=tuple(missing), audit=audit)
    version = registry.version(challenger)
    plan = version.plan
    folder = Path("combee_serving") / file_name(registry.name) if log_dir is None else Path(log_dir)
    shadows, versions = _by_version(folder, registry.name) if evidence is None else ({}, ())
    evidence = evidence or TrialEvidence(folder, registry.name)
    evidence.look(production, version)
    differences = [*earlier, *evidence.differences]
    low, high = interval(differences, plan.level)
    hours = evidence.shadow_hours if earlier else evidence.pair_hours
    receipt = version.receipt or {}
    heldout = receipt["difference"]["after"] if receipt.get("stage") == "read" else None
    missing += _unready(plan, heldout, len(differences), hours)
    if low <= -plan.epsilon:
        worse = "it is worse by more than that" if high < -plan.epsilon else "more pairs may tell"
        missing.append(
            f"the lower bound of the difference is {low:+.4f}"
            f" and must be above {-plan.epsilon:+.4f} ({worse})"
        )
    if any(line["action"] == "rollback" and line["from"] == challenger for line in audit):
        missing.append(f"version {challenger} was rolled back: publish again")
    mean = float(np.mean(differences)) if differences else math.nan
    return CanaryStatus(
        registry.name,
        production,
        challenger,
        plan,
        heldout,
        len(differences),
        mean,
        low,
        high,
        hours,
        shadows,
        versions,
        tuple(missing),
        audit,
    )


def _placed(audit: Sequence[Mapping[str, Any]]) -> int | None:
    """Return the version that should be in production, by the audit alone."""
    moves = [
        line["to"]
        for line in audit
        if line["action"] in ("promote", "rollback") and line["carried_out"]
    ]
    published = [line["to"] for line in audit if line["action"] == "publish"]
    return next(iter([*moves[-1:], *published]), None)


def _earlier(audit: Sequence[Mapping[str, Any]], now: int | None) -> int | None:
    """Return what was in production before, where the line that says so cannot be read: what the
    others say, else the version that was published last before.
    """
    placed = _placed(audit)
    if now is None or placed not in (None, now):
        return placed
    published = [
        line["to"]
        for line in audit
        if line["action"] == "publish" and line["to"] is not None and line["to"] < now
    ]
    return max(published, default=now - 1 if now > 1 else None)


def _unready(plan: CanaryPlan, heldout: float | None, pairs: int, hours: float) -> Iterator[str]:
    if heldout is None:
        yield "it has no held-out receipt"
    elif plan.target is None or heldout < plan.target:
        yield f"its held-out score is {heldout:.4f}, below {plan.target}"
    if pairs < plan.pairs:
        yield f"{pairs} of {plan.pairs} pairs are scored"
    if hours < plan.hours:
        yield f"{hours:.2f} of {plan.hours:g} hours have passed"


def _by_version(folder: Path, name: str) -> tuple[Mapping[str, int], tuple[Mapping[str, Any], ...]]:
    """Return what became of shadows, and sums of each version; of all that was ever served."""
    shadows, sums = Counter[str](), dict[str, Counter[str]]()
    sql = (
        "SELECT candidate, purpose, count(*) AS requests, count(error) AS errors,"
        " count(score) AS scored, total(score) AS score, total(ended - started) AS seconds"
        " FROM effect WHERE kind = 'rollout' GROUP BY 1, 2"
    )
    spent = (
        "SELECT e.candidate, e.purpose, total(u.prompt_tokens + u.completion_tokens) AS tokens,"
        " total(u.dollars) AS dollars, sum(u.dollars IS NULL) AS unpriced"
        " FROM usage u JOIN effect e ON e.id = u.effect WHERE e.kind = 'rollout' GROUP BY 1, 2"
    )
    for reader in open_journals(folder):
        if not serves(reader, name):
            continue
        last = RunHistory(reader).last(ShadowsCounted)
        shadows.update(last.counts if last else {})
        for row in (*reader.rows(sql), *reader.rows(spent)):
            into = sums.setdefault(f"{row['candidate']} {row['purpose']}", Counter())
            columns = dict(zip(row.keys(), row, strict=True))
            into.update({name: columns[name] for name in columns.keys() - {"candidate", "purpose"}})
    return shadows, tuple({"version": name, **counts} for name, counts in sorted(sums.items()))


def promote(
    registry: Registry,
    log_dir: Path | str | None = None,
    *,
    who: str | None = None,
    why: str = "",
    earlier: Sequence[float] = (),
) -> CanaryStatus:
    """Put the challenger into production, if its plan allows it, and return how the canary stood.

    Raises:
        PromotionRefusedError: Something is missing; it lists everything.
        RegistryError: The registry does not answer, or the challenger is not as it was published.
    """
    standing = status(registry, log_dir, earlier)
    if standing.missing or standing.production is None or standing.challenger is None:
        raise PromotionRefusedError(registry.name, standing.missing)
    reason = (
        why
        or f"{standing.pairs} pairs in {standing.hours:.1f} h: {standing.difference:+.4f},"
        f" at least {standing.low:+.4f}"
    )
    registry.move("promote", standing.production, standing.challenger, who, reason)
    return standing


def rollback(
    registry: Registry, *, who: str | None = None, why: str = "", only: int | None = None
) -> int | None:
    """Put the version before into production, and return its number. Needs the registry alone.

    Args:
        registry: Where the versions are.
        who: Who does it.
        why: The reason, for the audit.
        only: Do so only if this version is in production and the last change put it there; else
            return ``None``.

    Raises:
        ArgumentValueError: Nothing was promoted that could be rolled back.
    """
    now, audit = registry.at(PRODUCTION), registry.audit()
    moves = [
        line for line in audit if line["action"] in ("promote", "rollback") and line["carried_out"]
    ]
    spoiled = any(line["action"] == "unreadable" for line in audit)
    last = moves[-1] if moves else None
    # The last change was this version's promotion; a spoiled line may have been that.
    own = last is not None and (last["action"], last["to"]) == ("promote", now)
    if only is not None and not (now == only and (own or (spoiled and _placed(audit) != now))):
        return None
    before = next(
        (
            line["from"]
            for line in reversed(moves)
            if line["action"] == "promote" and line["to"] == now
        ),
        _earlier(audit, now) if spoiled else None,
    )
    if before is None or now is None:
        remedy = f"To end a trial: combee canary rollback {registry.name} --challenger"
        raise ArgumentValueError(
            "name", registry.name, "has nothing in production that was promoted", remedy
        )
    registry.move("rollback", now, before, who, why)
    if registry.at(CHALLENGER) == now:
        registry.withdraw(now, who, "it was rolled back")
    return int(before)


def withdraw(
    registry: Registry, *, who: str | None = None, why: str = "", only: int | None = None
) -> int | None:
    """End the trial of the challenger, and return its number.

    ``None`` where another than ``only`` is on trial.

    Raises:
        ArgumentValueError: There is none.
    """
    challenger = registry.at(CHALLENGER)
    if only is not None and challenger != only:
        return None
    if challenger is None:
        raise ArgumentValueError(
            "name", registry.name, "has no challenger", "See combee canary status."
        )
    registry.withdraw(challenger, who, why)
    return challenger
