"""Recorded rollouts: what was run elsewhere, and teaches without being run again.

| module | what it is | it may touch |
| --- | --- | --- |
| ``_records`` | a trace | ``combee_dspy.records`` |
| ``_base`` | the contract of a source | ``strategies`` |
| ``_fields`` | records of anybody's as traces | nothing but ``_records`` |
| ``_spans`` | the spans of one trace as a trace | the same |
| ``_matching`` | which predictors made its calls | DSPy's signatures |
| ``_json_lines``, ``_hugging_face``, ``_otlp``, ``_journal``, ``_mlflow`` | sources | stores |
| ``_opening`` | whatever holds traces | sources |
| ``_steps`` | the steps of a trajectory, cut by what decides | ``combee_dspy.reflections`` |
| ``_reading`` | what a reader sees of a trace | ``_steps`` |
| ``_selection`` | from a flood the informative few | ``_reading`` |
| ``_splitting`` | the newest days, held out | ``_opening`` |

Texts of traces are hostile: they are parsed and redacted, and nothing in them is followed.
"""

from combee_dspy.traces._base import TraceSource
from combee_dspy.traces._fields import FieldPaths, records_as_traces
from combee_dspy.traces._hugging_face import HuggingFace
from combee_dspy.traces._journal import ROLLOUTS, JournalTraces, trace_of_rollout
from combee_dspy.traces._json_lines import JsonLines
from combee_dspy.traces._matching import TraceCoverage, make_matcher, measure_coverage
from combee_dspy.traces._mlflow import MLflowTraces, trace_of_mlflow
from combee_dspy.traces._opening import Traces, open_traces
from combee_dspy.traces._otlp import OtlpFile
from combee_dspy.traces._reading import (
    RECORD_TOKENS,
    describe_outcome,
    is_right,
    read_call,
    read_others,
    read_trace,
    redact_trace,
)
from combee_dspy.traces._records import Recording, Trace
from combee_dspy.traces._selection import Selected, Selection
from combee_dspy.traces._splitting import as_example, hold_out_newest
from combee_dspy.traces._steps import read_inputs

__all__ = [
    "RECORD_TOKENS",
    "ROLLOUTS",
    "FieldPaths",
    "HuggingFace",
    "JournalTraces",
    "JsonLines",
    "MLflowTraces",
    "OtlpFile",
    "Recording",
    "Selected",
    "Selection",
    "Trace",
    "TraceCoverage",
    "TraceSource",
    "Traces",
    "as_example",
    "describe_outcome",
    "hold_out_newest",
    "is_right",
    "make_matcher",
    "measure_coverage",
    "open_traces",
    "read_call",
    "read_inputs",
    "read_others",
    "read_trace",
    "records_as_traces",
    "redact_trace",
    "trace_of_mlflow",
    "trace_of_rollout",
]
