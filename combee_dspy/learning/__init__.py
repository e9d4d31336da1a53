"""The reducer alone over recorded rollouts: nothing is run again.

    learned = learn_lessons(JsonLines("logs.jsonl"), reflection_lm="openai/gpt-5")
    print(learned.prompt)

    proposal = propose_program(program, MLflowTraces("support"), reflection_lm="openai/gpt-5")
    print(proposal)

Readers learn lessons from what was recorded, and a book relates and weighs them. Nothing is
validated: :meth:`combee_dspy.Combee.compile` and a canary do that.
"""

from combee_dspy.learning._lessons import LearnedLessons, learn_lessons
from combee_dspy.learning._programs import Proposal, propose_program

__all__ = ["LearnedLessons", "Proposal", "learn_lessons", "propose_program"]
