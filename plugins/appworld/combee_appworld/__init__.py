"""AppWorld for combee_dspy: the benchmark "appworld", its environments, and ``combee appworld``."""

from combee_appworld._benchmark import ActInAppWorld, AppWorld
from combee_appworld._environment import AppWorldEnvironment, AppWorldSession
from combee_appworld._scores import GoalCompletion, completion, goal_completion
from combee_appworld._setup import Installation, find_installation, install, make_miniature

__all__ = [
    "ActInAppWorld",
    "AppWorld",
    "AppWorldEnvironment",
    "AppWorldSession",
    "GoalCompletion",
    "Installation",
    "completion",
    "find_installation",
    "goal_completion",
    "install",
    "make_miniature",
]
