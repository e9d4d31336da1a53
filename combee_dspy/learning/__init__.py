"""Learns lessons from recorded rollouts, and runs nothing.

    learned = learn_lessons(JsonLines("logs.jsonl"), reflection_lm="openai/gpt-5")
    print(learned.prompt)

Readers learn lessons from what was recorded, and a book relates and weighs them. Nothing is
validated. :meth:`combee_dspy.Combee.compile` learns from traces for each predictor of a program,
and validates where it has rows.
"""

from combee_dspy.learning._engine import Allowance
from combee_dspy.learning._lessons import LearnedLessons, learn_lessons

__all__ = ["Allowance", "LearnedLessons", "learn_lessons"]
