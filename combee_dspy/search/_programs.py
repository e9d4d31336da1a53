"""The programs of candidates, each built once and kept for a while."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import dspy

from combee_dspy.rollouts import fingerprint, patient_program
from combee_dspy.search._candidates import Candidate

_PROGRAMS = 16
_CALLS = 100
# DSPy's own modules count up from an LM's rollout_id by one for each of a few attempts: far enough
# from those.
_STRIDE = 1_000_000


def another_draw(lm: Any, replicate: int) -> Any:
    """Return a copy of an LM whose answers are a draw of their own; the LM itself for replicate 0.

    DSPy's cache then keeps each replicate's answers apart. At temperature 0 the answer of a service
    stays what it was.
    """
    if lm is None or replicate == 0:
        return lm
    first = (getattr(lm, "kwargs", None) or {}).get("rollout_id")
    return lm.copy(rollout_id=(first if isinstance(first, int) else 0) + replicate * _STRIDE)


class _Recent(list[Any]):
    """A module's last calls: DSPy keeps 10,000 of each module, with their prompts."""

    def append(self, entry: Any) -> None:
        """Add a call, in the place of the oldest where there are enough."""
        if len(self) >= _CALLS:
            del self[0]
        super().append(entry)


class Programs:
    """Builds candidates' programs; the last few are kept. Lives on the search's loop."""

    def __init__(
        self,
        build: Callable[[Mapping[str, str]], dspy.Module],
        metric: Callable[..., Any],
        failure_score: float,
    ) -> None:
        self._build = build
        self._metric = metric
        self._failure_score = failure_score
        self._programs: OrderedDict[tuple[str, int], dspy.Module] = OrderedDict()
        self._prints: dict[str, str] = {}

    def of(self, candidate: Candidate, replicate: int = 0) -> dspy.Module:
        """Return a candidate's program for one of its draws. Only to be run, never changed."""
        place = (candidate.id, replicate)
        if place not in self._programs:
            program = self._build(candidate.texts)
            for predictor in program.predictors() if replicate else ():
                predictor.lm = another_draw(predictor.lm, replicate)
            self._programs[place] = patient_program(program)
            for _, module in self._programs[place].named_sub_modules():
                module.history = _Recent()
            if len(self._programs) > _PROGRAMS:
                self._programs.popitem(last=False)
        self._programs.move_to_end(place)
        return self._programs[place]

    def fingerprint(self, candidate: Candidate) -> str:
        """Return what rollouts of a candidate depend on besides their example, as a hash."""
        if candidate.id not in self._prints:
            self._prints[candidate.id] = fingerprint(
                self.of(candidate), self._metric, self._failure_score
            )
        return self._prints[candidate.id]
