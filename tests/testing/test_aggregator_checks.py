from __future__ import annotations

import contextlib
import random
import threading
from typing import ClassVar

import dspy
import pytest

from combee_dspy.aggregators import Aggregator
from combee_dspy.records import FailedCall, Lesson, Lessons, NodeOutput
from combee_dspy.testing import ConformanceError
from combee_dspy.testing.checks import aggregators


class Learn(dspy.Signature):
    """Say what to do differently."""

    feedback: list[str] = dspy.InputField()
    lesson: str = dspy.OutputField()


class Right(Aggregator):
    """One call per three reflections."""

    name: ClassVar[str] = "right"
    role = "proposer"

    def aggregate(self, reflections, context):
        shards = [reflections[i : i + 3] for i in range(0, len(reflections), 3)]
        inputs = [{"feedback": [r.record["Feedback"] for r in shard]} for shard in shards]
        answers = context.predict(Learn, inputs, role=self.role) if inputs else []
        lessons, nodes = [], []
        for number, (shard, answer) in enumerate(zip(shards, answers, strict=True)):
            sources = tuple(r.index for r in shard)
            if isinstance(answer, FailedCall):
                nodes.append(NodeOutput(1, number, sources, (), answer.error))
                continue
            texts = (answer.lesson,) if answer.lesson else ()
            nodes.append(NodeOutput(1, number, sources, texts))
            lessons += [Lesson(text, sources) for text in texts]
        return self.finish(Lessons(context.component, tuple(lessons), nodes=tuple(nodes)))

    def finish(self, lessons):
        return lessons


def variant(**methods):
    return type("Wrong", (Right,), methods)()


def returns(make):
    return variant(aggregate=lambda self, reflections, context: make(reflections, context))


def mutate(self, reflections, context):
    for reflection in reflections:
        reflection.record["Feedback"] = ""
    return Right.aggregate(self, reflections, context)


def shuffle(self, reflections, context):
    result = Right.aggregate(self, reflections, context)
    lessons = list(result.lessons)
    random.shuffle(lessons)
    return Lessons(result.component, (Lesson(str(random.random())), *lessons))


def call_anyway(self, reflections, context):
    context.predict(Learn, [{"feedback": []}])
    return Right.aggregate(self, reflections, context)


def call_directly(self, reflections, context):
    dspy.Predict(Learn)(feedback=[r.record["Feedback"] for r in reflections])
    return Right.aggregate(self, reflections, context)


def call_directly_and_hide_it(self, reflections, context):
    with contextlib.suppress(RuntimeError):
        dspy.settings.lm("hello")
    return Right.aggregate(self, reflections, context)


def trust_answers(self, reflections, context):
    answers = context.predict(Learn, [{"feedback": [r.record["Feedback"]]} for r in reflections]) if reflections else []
    return Lessons(context.component, tuple(Lesson(answer.lesson) for answer in answers))


def give_up(self, reflections, context):
    result = Right.aggregate(self, reflections, context)
    return Lessons(result.component, nodes=result.nodes) if any(n.failed for n in result.nodes) else result


def hide_failures(self, reflections, context):
    return Lessons(context.component, Right.aggregate(self, reflections, context).lessons)


def keep_blanks(self, reflections, context):
    result = Right.aggregate(self, reflections, context)
    return Lessons(result.component, (*result.lessons, *(Lesson("") for n in result.nodes if not n.lessons)), None)


def differ_by_thread(self, reflections, context):
    result = Right.aggregate(self, reflections, context)
    return result if threading.current_thread() is threading.main_thread() else Lessons(result.component)


WRONG = [
    (variant(aggregate=differ_by_thread), "check_threads_may_share_it", "from four threads"),
    (returns(lambda r, c: []), "check_takes_any_number_of_reflections", "returned list"),
    (returns(lambda r, c: Lessons("other")), "check_takes_any_number_of_reflections", "'other'"),
    (returns(lambda r, c: Lessons(c.component)), "check_takes_any_number_of_reflections", "no lesson"),
    (returns(lambda r, c: Lessons(c.component, [Lesson("a")])), "check_takes_any_number_of_reflections", "a tuple of"),
    (returns(lambda r, c: Lessons(c.component, ("a",))), "check_takes_any_number_of_reflections", "a tuple of"),
    (
        returns(lambda r, c: Lessons(c.component, (Lesson("a"),), nodes=("x",))),
        "check_takes_any_number_of_reflections",
        "NodeOutput",
    ),
    (
        returns(lambda r, c: Lessons(c.component, (Lesson("a", (999,)),))),
        "check_takes_any_number_of_reflections",
        "indices",
    ),
    (
        returns(lambda r, c: Lessons(c.component, (Lesson("a", (0, 0)),))),
        "check_takes_any_number_of_reflections",
        "each once",
    ),
    (returns(lambda r, c: Lessons(c.component, (Lesson(str(r[0])),))), "check_no_reflections_cost_nothing", "raise"),
    (variant(aggregate=call_anyway), "check_no_reflections_cost_nothing", "1 calls"),
    (returns(lambda r, c: Lessons(c.component, rewrite="x")), "check_no_reflections_cost_nothing", "no rewrite"),
    (variant(aggregate=mutate), "check_leaves_its_inputs_alone", "changed"),
    (variant(aggregate=shuffle), "check_same_stream_same_lessons", "context.stream"),
    (variant(aggregate=call_directly), "check_every_call_goes_through_predict", "LM('combee-dspy/forbidden')"),
    (variant(aggregate=call_directly_and_hide_it), "check_every_call_goes_through_predict", "LM("),
    (variant(role="boss"), "check_every_call_goes_through_predict", "boss"),
    (variant(aggregate=trust_answers), "check_survives_failed_calls", "AttributeError"),
    (variant(aggregate=hide_failures), "check_survives_failed_calls", "no node says so"),
    (variant(aggregate=give_up), "check_survives_failed_calls", "nothing was returned"),
    (variant(aggregate=keep_blanks), "check_survives_empty_answers", "blank"),
    (variant(reads=lambda self, size: float(size)), "check_reads_are_counted", "number of shards"),
    (variant(reads=lambda self, size: 1), "check_reads_are_counted", "reads(0)"),
]


@pytest.mark.parametrize("check", aggregators.CHECKS, ids=lambda c: c.__name__)
def test_a_right_aggregator_passes(check):
    check(Right())


@pytest.mark.parametrize(("strategy", "check", "says"), WRONG, ids=[f"{w[1]}-{n}" for n, w in enumerate(WRONG)])
def test_wrong_aggregators_fail_with_a_message_that_teaches(strategy, check, says):
    with pytest.raises(ConformanceError, match=r"expected: (.|\n)+happened: (.|\n)+to mend: ") as caught:
        getattr(aggregators, check)(strategy)
    assert says in str(caught.value)


def test_every_aggregator_check_has_a_strategy_that_fails_it():
    assert {check.__name__ for check in aggregators.CHECKS} == {check for _, check, _ in WRONG}


def test_an_error_of_its_own_is_not_taken_for_a_forbidden_call():
    def broken(reflections, context):
        raise KeyError("own fault")

    with pytest.raises(KeyError):
        aggregators.check_every_call_goes_through_predict(returns(broken))
