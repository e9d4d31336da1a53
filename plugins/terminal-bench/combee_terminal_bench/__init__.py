"""The benchmark "terminal-bench" for combee_dspy."""

from combee_terminal_bench._benchmark import TerminalBench
from combee_terminal_bench._environment import HarborEnvironment, judge
from combee_terminal_bench._setup import harbor_python, set_up
from combee_terminal_bench._tasks import Task, read_tasks

__all__ = [
    "HarborEnvironment",
    "Task",
    "TerminalBench",
    "harbor_python",
    "judge",
    "read_tasks",
    "set_up",
]
