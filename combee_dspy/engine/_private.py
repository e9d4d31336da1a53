"""The one module that touches private parts of DSPy and gepa.

What it relies on is pinned by ``tests/engine/test_private_contract.py``: when a
release moves one of these parts, that test names it.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import dspy
from dspy.teleprompt.bootstrap_trace import FailedPrediction
from dspy.teleprompt.gepa.gepa import AUTO_RUN_SETTINGS, GEPA, DspyGEPAResult
from dspy.teleprompt.gepa.gepa_flex_utils import enumerate_flex_submodules
from dspy.teleprompt.gepa.gepa_utils import DspyAdapter
from dspy.teleprompt.gepa.instruction_proposal import InstructionProposer
from gepa import EvaluationBatch

__all__ = [
    "AUTO_CANDIDATES",
    "DspyBridge",
    "EvaluationBatch",
    "InstructionProposer",
    "auto_budget",
    "detailed_results",
    "flex_sources",
    "hide_components",
]

AUTO_CANDIDATES: Mapping[str, int] = {name: setting["n"] for name, setting in AUTO_RUN_SETTINGS.items()}
"""``auto=`` settings of ``dspy.GEPA``: name to number of candidates."""


def auto_budget(components: int, candidates: int, validation_size: int) -> int:
    """Return the rollouts that ``dspy.GEPA(auto=…)`` would buy."""
    # The method reads nothing of its instance, so none is made.
    return int(GEPA.auto_budget(None, components, candidates, validation_size))


def flex_sources(student: dspy.Module) -> dict[str, str]:
    """Return the source of each ``dspy.Flex`` submodule by its path."""
    return {path: flex.module_src for path, flex in enumerate_flex_submodules(student).items()}


def detailed_results(result: Any, adapter: DspyAdapter) -> DspyGEPAResult:
    """Return what ``dspy.GEPA(track_stats=True)`` attaches to the program."""
    return DspyGEPAResult.from_gepa_result(result, adapter)


def hide_components(state: Any, keep: Iterable[str]) -> None:
    """Take components out of gepa's round-robin selection, in place.

    gepa reads the components to choose from once, off the seed candidate, and
    offers no way to keep one back.
    """
    state.list_of_named_predictors[:] = list(keep)


class _OwnEvaluation:
    """What DSPy's ``batch_evaluate`` reads of its adapter, without what is overridden in ours."""

    def __init__(self, bridge: DspyBridge) -> None:
        self._bridge = bridge
        self.num_threads = bridge.num_threads

    def evaluate(
        self, batch: list[Any], candidate: dict[str, str], capture_traces: bool, num_threads: int
    ) -> EvaluationBatch:
        return DspyAdapter.evaluate(
            self._bridge, batch, candidate, capture_traces=capture_traces, num_threads=num_threads
        )


class _OneRecord:
    """What DSPy's ``make_reflective_dataset`` reads of its adapter, with a program and a chance of its own."""

    def __init__(self, bridge: DspyBridge, program: dspy.Module, chance: random.Random) -> None:
        self._program = program
        self.rng = chance
        self.add_format_failure_as_feedback = bridge.add_format_failure_as_feedback
        self.feedback_map = bridge.feedback_map
        self.warn_on_score_mismatch: bool = bridge.warn_on_score_mismatch
        self._builtin_instruction_proposer = bridge._builtin_instruction_proposer
        self._flex_paths: frozenset[str] = frozenset()

    def build_program(self, candidate: dict[str, str]) -> dspy.Module:
        return self._program


class DspyBridge(DspyAdapter):
    """DSPy's own gepa adapter, with its private parts behind names of ours."""

    @property
    def flex_components(self) -> frozenset[str]:
        """Components that are the source code of a ``dspy.Flex``."""
        return frozenset(self._flex_paths)

    def own_proposals(
        self, candidate: dict[str, str], dataset: Mapping[str, Sequence[Mapping[str, Any]]], components: list[str]
    ) -> dict[str, str]:
        """Propose new texts as ``dspy.GEPA`` does: code, custom and built-in proposers."""
        return dict(DspyAdapter.propose_new_texts(self, candidate, dataset, components))

    def own_batches(self, items: list[tuple[dict[str, str], list[Any]]], capture_traces: bool) -> list[EvaluationBatch]:
        """Evaluate as ``dspy.GEPA`` does; the only way for programs with ``dspy.Flex`` parts.

        The candidates share ``num_threads``.
        """
        return list(DspyAdapter.batch_evaluate(_OwnEvaluation(self), items, capture_traces=capture_traces))

    def own_dataset(
        self, candidate: dict[str, str], evaluated: EvaluationBatch, components: list[str]
    ) -> dict[str, list[Any]]:
        """Build the reflective dataset as ``dspy.GEPA`` does.

        Raises:
            Exception: No trajectory has anything to say about any component (DSPy
                raises the bare class; gepa logs it and goes on).
        """
        return dict(DspyAdapter.make_reflective_dataset(self, candidate, evaluated, components))

    def own_record(
        self,
        program: dspy.Module,
        trajectory: Mapping[str, Any],
        component: str,
        chance: random.Random,
    ) -> Any | None:
        """Return what DSPy's reflective dataset says about one trajectory; ``None`` where it leaves it out.

        Thread-safe as far as the metric is.

        Args:
            program: The candidate's program; only read.
            trajectory: One record of DSPy's trajectories.
            component: Which component.
            chance: Picks one call where the predictor was called several times.
        """
        predictor = dict(program.named_predictors())[component]
        calls = [call for call in trajectory["trace"] if call[0].signature.equals(predictor.signature)]
        failed = [call for call in calls if isinstance(call[2], FailedPrediction)]
        if self.add_format_failure_as_feedback and failed:
            said = True
        else:
            # DSPy leaves out calls of a program that did not get to its end, and warns for each it leaves out.
            said = len(calls) > len(failed) and not isinstance(trajectory["prediction"], FailedPrediction)
        if not said:
            return None
        batch = EvaluationBatch(outputs=[], scores=[], trajectories=[trajectory])
        view = _OneRecord(self, program, chance)
        found = DspyAdapter.make_reflective_dataset(view, {}, batch, [component])
        # DSPy warns once a run.
        if not view.warn_on_score_mismatch:
            self.warn_on_score_mismatch = False
        return found[component][0]
