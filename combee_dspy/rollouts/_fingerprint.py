"""What a rollout depends on, hashed: program, LMs, adapter and metric.

Texts, field descriptions, demonstrations and settings count with their content; the user's own
classes and functions with their compiled code, so that comments and layout do not; an installed
package's with its name alone. An LM counts with its class, model, decoding parameters and endpoint,
never with its credentials; one whose ``cache_identity`` is a text stands at the endpoint of that
name, wherever its port is.

A metric may have state that changes as it runs, such as a cache or a counter. What
:func:`fingerprints` says of it is the same before and after: see
:mod:`combee_dspy.rollouts._settled`.
"""

from __future__ import annotations

import dspy

from combee_dspy.hashing import canonical_json
from combee_dspy.rollouts._describer import Describer, describe_lm, digest
from combee_dspy.rollouts._settled import describe_settled


def fingerprint(program: dspy.Module, metric: object, *others: object) -> str:
    """Return one hash of all that a rollout depends on, the metric's state too, and of any other
    JSON values.
    """
    return digest(
        [fingerprints(program, metric), metric_state(metric), *map(canonical_json, others)]
    )


def fingerprints(program: dspy.Module, metric: object) -> dict[str, str]:
    """Return hashes of what a rollout's result depends on: ``"program"``, ``"lms"``, ``"adapter"``,
    ``"metric"``.

    DSPy's settings are read as they are here and now. The metric counts without its state.
    """
    describer = Describer(lms=False)
    described = describer.describe(program)
    lms = [
        describe_lm(lm)
        for lm in (dspy.settings.lm, *(predictor.lm for predictor in program.predictors()))
    ]
    # A program may hold others: those of frozen parts, or one that it sets in dspy.context.
    for lm in map(describe_lm, describer.left_out):
        if lm not in lms:
            lms.append(lm)
    return {
        "program": digest(described),
        "lms": digest(lms),
        "adapter": digest(Describer().describe(dspy.settings.adapter)),
        "metric": digest(describe_settled(metric)),
    }


def metric_state(metric: object) -> str:
    """Return a hash of a metric and of all data that it holds at this moment, such as a cache."""
    return digest(Describer().describe(metric))
