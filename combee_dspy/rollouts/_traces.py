"""Which of a program's predictors made the calls in a DSPy trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import dspy

from combee_dspy.records import PredictorCall

Trace = Sequence[tuple[Any, Mapping[str, Any], Any]]


class Predictors:
    """Finds the paths of whoever made a call.

    Programs such as ``dspy.BestOfN`` call copies of their predictors, or make
    new ones in ``forward``. A call belongs to

    1. the predictor that made it, by identity;
    2. the original, for a copy: it has the same ``stage`` and an equal signature;
    3. otherwise, as in ``dspy.GEPA``, every predictor with an equal signature
       (instructions and fields) of which the trace has no call by rule 1 or 2.
    """

    def __init__(self, program: dspy.Module) -> None:
        named = list(program.named_predictors())
        self._by_id = {id(predictor): path for path, predictor in named}
        self._signatures = {path: predictor.signature for path, predictor in named}
        self._by_stage: dict[str, list[str]] = {}
        for path, predictor in named:
            self._by_stage.setdefault(predictor.stage, []).append(path)

    def calls(self, trace: Trace) -> list[PredictorCall]:
        """Return the predictor calls of a trace."""
        exact = [self._exact(caller) for caller, _, _ in trace]
        called = {path for paths in exact for path in paths}
        calls = []
        for (caller, inputs, outputs), paths in zip(trace, exact, strict=True):
            alike = () if paths else self._by_signature(_signature_of(caller))
            paths = paths or tuple(path for path in alike if path not in called)
            calls.append(_call(paths, inputs, dict(outputs.items())))
        return calls

    def unparsed(
        self, signature: type[dspy.Signature], inputs: Mapping[str, Any], completion: str
    ) -> PredictorCall:
        """Return the call whose answer did not parse: the error names its signature alone."""
        return _call(self._by_signature(signature), inputs, None, completion)

    def _exact(self, caller: object) -> tuple[str, ...]:
        """Return the path of a caller by identity or origin; several for copies of equal copies."""
        if id(caller) in self._by_id:
            return (self._by_id[id(caller)],)
        copied = self._by_stage.get(getattr(caller, "stage", ""), [])
        signature = _signature_of(caller)
        return tuple(path for path in copied if self._signatures[path].equals(signature))

    def _by_signature(self, signature: type[dspy.Signature] | None) -> tuple[str, ...]:
        items = self._signatures.items()
        identical = tuple(path for path, own in items if own is signature)
        return identical or tuple(path for path, own in items if own.equals(signature))


def _signature_of(caller: object) -> type[dspy.Signature] | None:
    return getattr(caller, "signature", None)  # what else DSPy traces may have none


def _call(
    paths: tuple[str, ...],
    inputs: Mapping[str, Any],
    outputs: Mapping[str, Any] | None,
    completion: str = "",
) -> PredictorCall:
    first, *others = paths or ("",)
    return PredictorCall(first, inputs, outputs, completion, tuple(others))


# DSPy's own search for predictors looks through a program's history, which grows with every call.
_KNOWN: WeakKeyDictionary[dspy.Module, Predictors] = WeakKeyDictionary()


def predictors_of(program: dspy.Module) -> Predictors:
    """Return the predictors of a program, looked up once: programs that run are never changed."""
    try:
        predictors = _KNOWN.get(program)
        if predictors is None:
            predictors = _KNOWN[program] = Predictors(program)
    except TypeError:  # a class that compares programs by what they hold cannot be hashed
        return Predictors(program)
    return predictors
