"""The simulated service answers what TextGrad asks, in the form it asks for."""

from __future__ import annotations

import re

from tests.baselines.conftest import World

FEEDBACK = (
    "You will give feedback to a variable. <LM_INPUT> {question} </LM_INPUT> <LM_OUTPUT> {answer} </LM_OUTPUT> "
    "<OBJECTIVE_FUNCTION>Improve the score.</OBJECTIVE_FUNCTION> <VARIABLE> Say it. </VARIABLE>"
)
UPDATE = (
    "The variable is the text within the following span: <VARIABLE> Say it. </VARIABLE>\n\n<CONTEXT>{context}</CONTEXT>"
    "\n\nSend ONLY the improved variable between the <IMPROVED_VARIABLE> tags, and nothing else."
)


def test_feedback_states_the_lesson_of_the_question_it_shows(world: World):
    row = world.rows[0]
    (said,) = world.service.lm()(FEEDBACK.format(question=row.question, answer="nothing"))
    assert "[copper]" in said
    assert "[silver]" not in said
    assert world.service.stats().by_kind["reflect"].calls == 1


def test_an_update_keeps_the_variable_and_adds_the_lessons_between_the_tags(world: World):
    context = "<FEEDBACK>- [amber] amber: do it right.</FEEDBACK>"
    (said,) = world.service.lm()(UPDATE.format(context=context))
    inside = re.fullmatch(r"<IMPROVED_VARIABLE>(.*)</IMPROVED_VARIABLE>", said, re.DOTALL)
    assert inside
    assert inside[1].startswith("Say it.")
    assert "[amber]" in inside[1]
    assert world.service.stats().by_kind["reflect"].calls == 1
