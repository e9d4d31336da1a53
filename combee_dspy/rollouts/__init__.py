"""Running programs: one rollout, slots with priorities and a limit that adapts, retries, and executors."""

from combee_dspy.rollouts._ask import arun_call, run_call
from combee_dspy.rollouts._base import Executor, ExecutorSession
from combee_dspy.rollouts._batching import Batching
from combee_dspy.rollouts._codec import (
    decode_answer,
    decode_rollout,
    decode_value,
    encode_answer,
    encode_rollout,
    encode_value,
)
from combee_dspy.rollouts._fingerprint import fingerprint, fingerprints
from combee_dspy.rollouts._jobs import Answer, CallJob, InfrastructureFaultError, Metric, RolloutJob
from combee_dspy.rollouts._limits import Fixed, Limit
from combee_dspy.rollouts._run import arun_rollout, read_score, run_rollout, takes_trace
from combee_dspy.rollouts._slots import Priority, Slots
from combee_dspy.rollouts._threads import Threads, ThreadSession

__all__ = [
    "Answer",
    "Batching",
    "CallJob",
    "Executor",
    "ExecutorSession",
    "Fixed",
    "InfrastructureFaultError",
    "Limit",
    "Metric",
    "Priority",
    "RolloutJob",
    "Slots",
    "ThreadSession",
    "Threads",
    "arun_call",
    "arun_rollout",
    "decode_answer",
    "decode_rollout",
    "decode_value",
    "encode_answer",
    "encode_rollout",
    "encode_value",
    "fingerprint",
    "fingerprints",
    "read_score",
    "run_call",
    "run_rollout",
    "takes_trace",
]
