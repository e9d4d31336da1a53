"""Which predictors of a program made the calls of a trace. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

import dspy

from combee_dspy.hashing import row_hash
from combee_dspy.records import PredictorCall
from combee_dspy.traces._records import Trace

__all__ = ["TraceCoverage", "make_matcher", "measure_coverage"]


@dataclass(frozen=True, slots=True)
class TraceCoverage:
    """What of some traces a program could learn from. Counts of traces, but for ``calls``.

    Attributes:
        traces: All that were read.
        matched: Those with a call that is clearly one of the program's predictors.
        ambiguous: Those whose calls may be of several predictors, and of none clearly.
        unmatched: Those without a call that may be of a predictor.
        unjudged: Those that nothing is said of: no score, feedback, expected answer or error.
        repeated: Those with the inputs of an earlier one.
        calls: Matched calls by predictor.
        prompts: Traces by who answered, prompt and model; those of another prompt or model teach,
            and are never compared with.
        foreign: Names of steps that are no predictor of the program, by how often they occur.
    """

    traces: int = 0
    matched: int = 0
    ambiguous: int = 0
    unmatched: int = 0
    unjudged: int = 0
    repeated: int = 0
    calls: Mapping[str, int] = field(default_factory=dict)
    prompts: Mapping[tuple[str, str], int] = field(default_factory=dict)
    foreign: Mapping[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        """Return the counts in a sentence."""
        return (
            f"{self.traces} traces: {self.matched} match, {self.ambiguous} are ambiguous,"
            f" {self.unmatched} match no predictor, {self.unjudged} lack a label,"
            f" {self.repeated} repeat"
        )


def make_matcher(program: dspy.Module) -> Callable[[Trace], Trace]:
    """Return what gives a trace whose calls name the program's predictors.

    A call that the source stamped with a path in the program keeps it. Another belongs to every
    predictor whose input and output fields it has; the first is its ``predictor``, the others are
    in ``also``. A trace none of whose calls is a predictor's, whoever answered, ends with a call of
    the predictor that has its own fields.
    """
    signatures = {path: predictor.signature for path, predictor in program.named_predictors()}

    def match(trace: Trace) -> Trace:
        calls = [_match_call(call, signatures) for call in trace.calls]
        if not any(call.predictor in signatures for call in calls):
            own = _match_call(PredictorCall("", trace.inputs, trace.outputs), signatures)
            calls += [own] if own.predictor else []
        return replace(trace, calls=tuple(calls))

    return match


def _match_call(
    call: PredictorCall, signatures: Mapping[str, type[dspy.Signature]]
) -> PredictorCall:
    if call.predictor in signatures:
        return call
    paths = [path for path, signature in signatures.items() if _fits(call, signature)]
    return replace(call, predictor=paths[0], also=tuple(paths[1:])) if paths else call


def _fits(call: PredictorCall, signature: type[dspy.Signature]) -> bool:
    if not signature.input_fields.keys() <= call.inputs.keys():
        return False
    return call.outputs is None or signature.output_fields.keys() == call.outputs.keys()


def measure_coverage(traces: Iterable[Trace], program: dspy.Module) -> TraceCoverage:
    """Return what of some traces a program could learn from."""
    paths = {path for path, _ in program.named_predictors()}
    counts: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    prompts: Counter[tuple[str, str]] = Counter()
    foreign: Counter[str] = Counter()
    hashes: set[str] = set()
    match = make_matcher(program)
    for trace in traces:
        matches = match(trace).calls
        clear = [call.predictor for call in matches if call.predictor in paths and not call.also]
        ambiguous = any(call.predictor in paths for call in matches)
        counts["matched" if clear else "ambiguous" if ambiguous else "unmatched"] += 1
        counts["traces"] += 1
        counts["unjudged"] += not trace.judged
        digest = row_hash(trace.inputs)[:16]
        counts["repeated"] += digest in hashes
        hashes.add(digest)
        calls.update(clear)
        prompts[trace.prompt, trace.model] += 1
        foreign.update(call.predictor for call in matches if call.predictor not in paths)
    return TraceCoverage(**counts, calls=calls, prompts=prompts, foreign=foreign)
