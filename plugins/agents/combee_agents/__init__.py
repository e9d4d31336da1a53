"""Agent sessions: DSPy agents that act in an environment, in parallel, and are judged by what they
leave there.
"""

from combee_agents._agent import SessionAgent, SessionMetric, current, in_session, session_tools
from combee_agents._base import (
    AgentSession,
    Environment,
    EnvironmentFaultError,
    Evaluation,
    FaultKind,
)
from combee_agents._code import CodeAgent
from combee_agents._pool import PoolStats, SessionPool
from combee_agents._pooled import PooledSession, SessionLimits
from combee_agents._process import ServerProcess

__all__ = [
    "AgentSession",
    "CodeAgent",
    "Environment",
    "EnvironmentFaultError",
    "Evaluation",
    "FaultKind",
    "PoolStats",
    "PooledSession",
    "ServerProcess",
    "SessionAgent",
    "SessionLimits",
    "SessionMetric",
    "SessionPool",
    "current",
    "in_session",
    "session_tools",
]
