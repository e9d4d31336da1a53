"""Publishing: what a run returned, with its held-out receipt, becomes a version."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from typing import Any

from combee_dspy.artifacts import Instruction
from combee_dspy.evaluation import Receipt
from combee_dspy.exceptions import ArgumentValueError, RefusedError
from combee_dspy.journal import Reader, RunHistory, journal_file
from combee_dspy.loading import CandidateRecord, candidates
from combee_dspy.registry import Spec
from combee_dspy.search import Candidate
from combee_dspy.tracking import run_number
from combee_strategist.canary._registry import CHALLENGER, PRODUCTION, CanaryPlan, Registry

__all__ = ["LEAST_HOURS", "propose_texts", "publish", "seed_production"]

LEAST_HOURS = 24.0
"""Hours of a canary below which its publication needs a reason: a day has every hour's traffic."""

_WORDS = 3  # different ones, of a reason

# Hashes and scores of single rows stay in the run's journal; the receipt's own hash tells that they
# are the same.
_OF_ROWS = ("rows", "train", "validation")


def publish(
    run: str | os.PathLike[str],
    name: str,
    plan: CanaryPlan | None = None,
    *,
    task: str | None = None,
    uri: str | None = None,
    who: str | None = None,
    why: str = "",
) -> int:
    """Register the program that a run returned as the challenger, and return its version.

    The first time, the program that the run began with is registered before it, as ``production``.

    Args:
        run: The run's ``log_dir``, or its journal.
        name: The prompt's name in the registry.
        plan: The terms of the canary; they cannot be changed afterwards.
        task: One of several tasks in the journal, by name; the newest by default.
        uri: As for :class:`Registry`.
        who: Who publishes; the process's user by default.
        why: The reason, for the audit. Needed for a canary of less than a day.

    Raises:
        RefusedError: The canary is shorter than a day, and no reason is given.
        ArgumentValueError: The run has no held-out receipt, it returned what it was given, or
            another challenger waits.
        RegistryError: The registry does not answer.
    """
    plan = plan or CanaryPlan()
    if plan.hours < LEAST_HOURS and len({*why.lower().split()}) < _WORDS:
        raise RefusedError(
            f"a canary of {plan.hours:g} hours without a reason on record",
            "it sees only one part of a day's traffic",
            f"Say why in a few words (why=…, --why), or give {LEAST_HOURS:g} hours.",
        )
    with Reader(journal_file(os.fspath(run))) as reader:
        number = run_number(reader, task)
        history = RunHistory(reader, number)
        origin, artifact = history.record.name, dict(history.about.spec("artifact"))
        receipts = [entry.event for entry in history.entries(Receipt)]
    read = next(
        (
            receipt
            for receipt in reversed(receipts)
            if receipt.stage == "read" and receipt.difference
        ),
        None,
    )
    if read is None:
        remedy = "Compile with heldout=…: the search chose by its training and validation rows."
        raise ArgumentValueError("run", os.fspath(run), "has no held-out receipt", remedy)
    if len(set(read.programs)) < 2:
        raise ArgumentValueError(
            "run", os.fspath(run), "returned the program that it was given", "Learn something."
        )
    of_run = {candidate.id: candidate for candidate in candidates(run) if candidate.run == origin}
    before, after = (of_run[candidate_id] for candidate_id in read.programs)
    registry = Registry(name, uri)
    production, waiting = registry.at(PRODUCTION), registry.at(CHALLENGER)
    if waiting not in (None, production):
        raise _waits(name, waiting)
    if production is None:
        registry.add(
            _document(before, origin, artifact, plan), PRODUCTION, who, f"what {origin} began with"
        )
    return registry.add(
        _document(after, origin, artifact, plan, read),
        CHALLENGER,
        who,
        why or f"learned by {origin}",
    )


def seed_production(registry: Registry, texts: Mapping[str, str], plan: CanaryPlan) -> None:
    """Put a program's own texts into production, where nothing is there yet.

    Raises:
        RegistryError: The registry does not answer.
    """
    if registry.at(PRODUCTION) is None:
        spec = Spec.of(Instruction()).to_dict()
        document = _document(Candidate(texts), registry.name, spec, plan)
        registry.add(document, PRODUCTION, None, "the program as it was given")


def propose_texts(
    registry: Registry,
    texts: Mapping[str, str],
    receipt: Receipt | None,
    plan: CanaryPlan,
    why: str,
) -> int:
    """Register texts as the challenger, with what was read of them, and return their version.

    Without a receipt they can be put into production by hand alone.

    A challenger with these texts that is there already is returned as it is: whoever was killed
    after it had published publishes once.

    Raises:
        ArgumentValueError: Another challenger waits.
        RegistryError: The registry does not answer.
    """
    candidate, waiting = Candidate(texts), registry.at(CHALLENGER)
    if waiting not in (None, registry.at(PRODUCTION)):
        if registry.version(waiting).candidate == candidate.id:
            return waiting
        raise _waits(registry.name, waiting)
    spec = Spec.of(Instruction()).to_dict()
    run = registry.name if receipt is None else receipt.run
    document = _document(candidate, run, spec, plan, receipt)
    return registry.add(document, CHALLENGER, None, why)


def _waits(name: str, version: int) -> ArgumentValueError:
    remedy = f"Promote it, or: combee canary rollback {name} --challenger"
    return ArgumentValueError("name", name, f"has a challenger already, version {version}", remedy)


def _document(
    candidate: Candidate | CandidateRecord,
    run: str,
    artifact: Mapping[str, object],
    plan: CanaryPlan,
    receipt: Receipt | None = None,
) -> dict[str, Any]:
    terms = plan.to_dict()
    summary = None
    if receipt is not None and receipt.difference is not None:
        whole: dict[str, Any] = receipt.to_dict()
        digest = hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()
        heldout = {key: value for key, value in whole["heldout"].items() if key not in _OF_ROWS}
        summary = {key: value for key, value in whole.items() if key not in ("before", "after")}
        summary |= {"heldout": heldout, "sha256": digest}
        if terms["target"] is None:
            terms["target"] = receipt.difference.before
    return {
        "candidate": candidate.id,
        "run": run,
        "artifact": dict(artifact),
        "texts": dict(candidate.texts),
        "receipt": summary,
        "plan": terms,
    }
