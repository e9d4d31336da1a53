"""Which adapter writes this library's own questions."""

from __future__ import annotations

import dspy

from combee_dspy.lms._adapters import ConstrainedJSONAdapter
from combee_dspy.lms._embedded import EmbeddedEngine


def adapter_for(lm: dspy.BaseLM | None) -> dspy.Adapter:
    """Return the adapter that writes this library's own questions.

    That is the one in DSPy's settings. By default it is DSPy's own default,
    ``ChatAdapter``, which asks once more in JSON where an answer does not parse.
    An embedded model gets JSON that its grammar enforces: SmolLM2-135M
    kept to the field markers of ``ChatAdapter`` in 0 of 40 answers.

    Args:
        lm: Who answers; ``None`` for the LM in DSPy's settings.
    """
    if dspy.settings.adapter is not None:
        return dspy.settings.adapter
    engine = getattr(lm or dspy.settings.lm, "engine", None)
    return ConstrainedJSONAdapter() if isinstance(engine, EmbeddedEngine) else dspy.ChatAdapter()
