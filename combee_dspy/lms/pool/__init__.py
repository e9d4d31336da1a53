"""A client for many requests at once to one OpenAI-compatible service."""

from combee_dspy.lms.pool.access import PooledOptions
from combee_dspy.lms.pool.engine import AsyncPooledEngine, PooledEngine
from combee_dspy.lms.pool.lm import pooled

__all__ = ["AsyncPooledEngine", "PooledEngine", "PooledOptions", "pooled"]
