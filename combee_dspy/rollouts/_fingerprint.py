"""What a rollout depends on, hashed: program, LMs, adapter and metric.

Texts, field descriptions, demonstrations and settings count with their content; the user's own
classes and functions with their compiled code, so that comments and layout do not; those of
installed packages with their names. An LM counts with its class, model, parameters and endpoint,
never with its credentials; one whose ``cache_identity`` is a text counts with that text in place of
its endpoint.

A metric counts as it is before, during and after a run, so without the state that changes as it
runs. What counts: the code of functions and classes, and of what they call; numbers, texts and
tuples in attributes, variables, defaults and arguments; LMs and predictors. What does not: data in
lists, dicts and sets; attributes and variables that the code assigns, or whose items it sets,
outside of ``__init__``. Whether the data in a container changes scores cannot be known: a cache
does not, a table of weights does.
"""

from __future__ import annotations

import dspy

from combee_dspy.hashing import canonical_json
from combee_dspy.rollouts._describer import Describer, describe_lm, digest


def fingerprint(program: dspy.Module, metric: object, *others: object) -> str:
    """Return one hash of all that a rollout depends on, the metric's state too, and of any other
    JSON values.
    """
    return digest(
        [
            fingerprints(program, metric),
            digest(Describer().describe(metric)),
            *map(canonical_json, others),
        ]
    )


def fingerprints(program: dspy.Module, metric: object) -> dict[str, str]:
    """Return hashes of what a rollout's result depends on: ``"program"``, ``"lms"``, ``"adapter"``,
    ``"metric"``.

    DSPy's settings are read as they are here and now. The metric counts without its state.
    """
    describer = Describer(lms=False)
    described = describer.describe(program)
    own = [dspy.settings.lm, *(predictor.lm for predictor in program.predictors())]
    lms = [describe_lm(lm) for lm in own]
    # A program may hold others: those of frozen parts, or one that it sets in dspy.context.
    for lm in map(describe_lm, describer.left_out):
        if lm not in lms:
            lms.append(lm)
    # What code assigns is known once all code has been read.
    reader = Describer(data=False)
    reader.describe(metric)
    settled = Describer(data=False, left_out_names=frozenset(reader.assigned))
    return {
        "program": digest(described),
        "lms": digest(lms),
        "adapter": digest(Describer().describe(dspy.settings.adapter)),
        "metric": digest(settled.describe(metric)),
    }
