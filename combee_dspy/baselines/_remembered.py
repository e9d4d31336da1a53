"""Validation rollouts of programs that an optimizer runs itself, answered from a cache."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import dspy

from combee_dspy.baselines._texts import texts_of
from combee_dspy.engine.candidates import candidate_id
from combee_dspy.hashing import canonical_json, row_hash
from combee_dspy.records import Rollout
from combee_dspy.rollouts import EvaluationCache, Fingerprints, RolloutKey

__all__ = ["Remembered"]


class Remembered:
    """Gives an optimizer a program that asks a cache before it runs. Thread-safe.

    Only rollouts on validation rows are answered: what an optimizer reflects on or takes as
    demonstrations must be traced, and those are training rows.

    Args:
        cache: Rollouts that have been paid for.
        student: The program that candidates are made from.
        metric: The task's metric.
        failure_score: Score of a rollout that failed.
        rows: The validation rows.
    """

    def __init__(
        self,
        cache: EvaluationCache,
        student: dspy.Module,
        metric: Callable[..., Any],
        failure_score: float,
        rows: Sequence[dspy.Example],
    ) -> None:
        self._cache = cache
        self._student = student
        self._kind = type(student)
        self._prints = Fingerprints(metric, failure_score)
        self._rows = {canonical_json(dict(row.inputs().items())): (row, row_hash(row)) for row in rows}
        self._lock = threading.Lock()
        self._local = threading.local()
        self._asking = self._class()

    def asking(self) -> dspy.Module:
        """Return a copy of the student that asks the cache first; so do copies of it."""
        program: Any = self._student.deepcopy()
        program.__class__ = self._asking
        return program

    def plain(self, program: dspy.Module) -> dspy.Module:
        """Return a copy of a candidate as a program of the student's own class."""
        copied: Any = program.deepcopy()
        if type(copied) is self._asking:
            copied.__class__ = self._kind
        return copied

    def take(self) -> Rollout | None:
        """Return the rollout that answered the call which has just ended in this thread, once."""
        found: Rollout | None = getattr(self._local, "found", None)
        self._local.found = None
        return found

    def keep(self, program: dspy.Module, rollout: Rollout) -> None:
        """Keep the rollout that was bought last in this thread, if it is one on a validation row."""
        placed = self._rows.get(canonical_json(dict(rollout.example.inputs().items())))
        if placed is not None and placed[1] == rollout.example_id:
            plain, trace = self.plain(program), getattr(self._local, "trace", ())
            names = {id(predictor): name for name, predictor in program.named_predictors()}
            known = [(step, names[id(step[0])]) for step in trace if id(step[0]) in names]
            traced = replace(rollout, trace=tuple(step for step, _ in known), callers=tuple(name for _, name in known))
            self._cache.enter(self._key(plain, *placed), traced, program)

    def _traced(self, program: Any, run: Callable[[], Any]) -> Any:
        """Run a program and keep its trace, in the trace around it too: others may need what they reuse traced."""
        outer = dspy.settings.trace
        with dspy.context(trace=[]):
            try:
                return run()
            finally:
                self._local.trace = tuple(dspy.settings.trace)
                if outer is not None:
                    outer.extend(self._local.trace)

    def _find(self, program: dspy.Module, inputs: Mapping[str, Any]) -> Rollout | None:
        placed = self._rows.get(canonical_json(dict(inputs)))
        if placed is None:
            return None
        plain = self.plain(program)
        found = self._cache.find(self._key(plain, *placed), placed[0], lambda: plain)
        # What failed is run again: an optimizer has its own way with errors.
        return found if found is not None and found.failed_in is None else None

    def _key(self, plain: dspy.Module, row: dspy.Example, digest: str) -> RolloutKey:
        # A candidate's own LM may be another at each call: MIPROv2 draws its demonstrations so.
        own = [repr(getattr(predictor.lm, "kwargs", None)) for predictor in plain.predictors()]
        identity = candidate_id({**texts_of(plain, self._student), "::lm": canonical_json(own)})
        with self._lock:
            self._prints.read_settings()
            self._prints.of_program(identity, plain)
            return self._prints.key(identity, digest, row, 0)

    def _class(self) -> type[dspy.Module]:
        remembered = self
        kind: Any = self._kind

        def forward(program: Any, *args: Any, **inputs: Any) -> Any:
            found = remembered._find(program, inputs) if not args else None
            if found is not None:
                remembered._local.found = found
                return found.prediction
            return remembered._traced(program, lambda: kind.forward(program, *args, **inputs))

        names = {"forward": forward, "__module__": kind.__module__, "__qualname__": kind.__qualname__}
        # A module's class is made by a metaclass of DSPy's.
        meta: Any = type(kind)
        made: type[dspy.Module] = meta(kind.__name__, (kind,), names)
        return made
