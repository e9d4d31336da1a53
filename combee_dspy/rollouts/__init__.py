"""Runs programs and LM calls: one rollout, slots with a limit that adapts, executors, and values in
journals.
"""

from combee_dspy.rollouts._attempt import REPEATS, Repeats, note_meter, run_in_time
from combee_dspy.rollouts._batching import Batching, Priority
from combee_dspy.rollouts._classes import note_classes
from combee_dspy.rollouts._codecs import Codec, add_codec
from combee_dspy.rollouts._executors import (
    Asyncio,
    Executor,
    ExecutorSession,
    Threads,
    ThreadSession,
)
from combee_dspy.rollouts._fence import fenced
from combee_dspy.rollouts._fingerprint import fingerprint, fingerprints
from combee_dspy.rollouts._jobs import (
    AbandonedError,
    Answer,
    CallJob,
    InfrastructureFaultError,
    RolloutJob,
    RolloutTimeoutError,
    is_late,
)
from combee_dspy.rollouts._limits import Adaptive, Fixed, Limit
from combee_dspy.rollouts._patient import (
    PATIENCE,
    lms_of,
    may_pass,
    patient,
    patient_program,
)
from combee_dspy.rollouts._records_json import (
    call_with_texts,
    decode_answer,
    decode_rollout,
    encode_answer,
    encode_rollout,
    fields_with_texts,
    hashed,
    rollout_with_texts,
    unkept_reason,
    with_texts,
)
from combee_dspy.rollouts._run import (
    arun_rollout,
    await_here,
    output_of,
    raise_fault,
    read_score,
    run_rollout,
    takes_trace,
)
from combee_dspy.rollouts._slots import Check, Slots, open_slots
from combee_dspy.rollouts._threads import DaemonPool, run_in_daemon, run_on_own_loop
from combee_dspy.rollouts._traces import predictors_of
from combee_dspy.rollouts._values import (
    NotStorableError,
    decode_value,
    encode_value,
)

__all__ = [
    "PATIENCE",
    "REPEATS",
    "AbandonedError",
    "Adaptive",
    "Answer",
    "Asyncio",
    "Batching",
    "CallJob",
    "Check",
    "Codec",
    "DaemonPool",
    "Executor",
    "ExecutorSession",
    "Fixed",
    "InfrastructureFaultError",
    "Limit",
    "NotStorableError",
    "Priority",
    "Repeats",
    "RolloutJob",
    "RolloutTimeoutError",
    "Slots",
    "ThreadSession",
    "Threads",
    "add_codec",
    "arun_rollout",
    "await_here",
    "call_with_texts",
    "decode_answer",
    "decode_rollout",
    "decode_value",
    "encode_answer",
    "encode_rollout",
    "encode_value",
    "fenced",
    "fields_with_texts",
    "fingerprint",
    "fingerprints",
    "hashed",
    "is_late",
    "lms_of",
    "may_pass",
    "note_classes",
    "note_meter",
    "open_slots",
    "output_of",
    "patient",
    "patient_program",
    "predictors_of",
    "raise_fault",
    "read_score",
    "rollout_with_texts",
    "run_in_daemon",
    "run_in_time",
    "run_on_own_loop",
    "run_rollout",
    "takes_trace",
    "unkept_reason",
    "with_texts",
]
