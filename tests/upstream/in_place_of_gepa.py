"""A pytest plugin: tests that say ``dspy.GEPA`` get ``Combee``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import dspy
import pytest
from dspy.teleprompt.gepa import InstructionProposer

from combee_dspy import Combee

GEPA_MINIBATCH = 3


class Matched(Combee):
    """``Combee`` that asks what ``dspy.GEPA`` asks, about as many examples: only the search is
    ours.
    """

    def __init__(self, metric: Callable[..., Any], **arguments: Any) -> None:
        arguments.setdefault("reflection_minibatch_size", GEPA_MINIBATCH)
        arguments.setdefault("instruction_proposer", InstructionProposer())
        super().__init__(metric, **arguments)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--matched",
        action="store_true",
        help="DSPy's proposer and minibatches of three in Combee",
    )


def pytest_configure(config: pytest.Config) -> None:
    gepa, ours = dspy.GEPA, Matched if config.getoption("--matched") else Combee
    # Wherever a test may import it from; our own modules go on meaning GEPA itself.
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] == "dspy" and getattr(module, "GEPA", None) is gepa:
            module.GEPA = ours
