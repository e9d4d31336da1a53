import dspy
import pytest
from combee_dspy import registry
from combee_dspy.baselines import BaselineTask
from combee_dspy.exceptions import ArgumentError
from combee_dspy.lms import SimulatedConfig, SimulatedService, SimulatedTask
from combee_dspy.records import Rollout
from combee_dspy.testing._scripted_lm import ScriptedLM

from combee_textgrad import TextGrad


def rows():
    return [
        dspy.Example(question=f"What is piece number {n} of kind {kind} worth today?", answer=f"{kind}{n}").with_inputs(
            "question"
        )
        for n in range(9)
        for kind in ("copper", "silver", "amber")
    ]


def metric(gold, pred, trace=None, pred_name=None, pred_trace=None):
    right = str(getattr(pred, "answer", "")) == gold.answer
    return dspy.Prediction(score=float(right), feedback=f"The answer to {gold.question} is {gold.answer}.")


def test_it_is_found_by_name():
    assert registry.build("baseline", "textgrad") == TextGrad()


def test_it_comes_from_this_distribution_and_loads():
    found = [entry for entry in registry.installed() if entry.name == "textgrad"]
    expected = [("baseline", "combee-dspy-textgrad", None)]
    assert [(entry.kind, entry.distribution, entry.problem) for entry in found] == expected


def test_it_learns_what_a_service_can_learn(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    examples = rows()
    knowledge = SimulatedTask.from_examples(
        examples, "question", "answer", key_of=lambda row: row["answer"].rstrip("0123456789"), base_rate=0.1
    )
    with SimulatedService(SimulatedConfig(time_scale=0.0), knowledge) as service:
        result = TextGrad().run(
            BaselineTask(
                program=dspy.ChainOfThought("question -> answer"),
                metric=metric,
                train=tuple(examples[:12]),
                validation=tuple(examples[12:18]),
                heldout=tuple(examples[18:]),
                task_lm=service.lm(),
                reflection_lm=service.lm(),
                budget=60,
                threads=4,
                probe=False,
            )
        )
    assert result.heldout.low > 0
    assert result.rollouts <= 60
    assert set(result.versions) == {"dspy", "textgrad", "combee-dspy-textgrad", "combee-dspy"}
    assert not list(tmp_path.iterdir()), "textgrad's log of every prompt"


def step(answer, instructions=None, rollout=None):
    from combee_textgrad._graph import Engine, Graph

    program = dspy.Predict("question -> answer")
    lm = ScriptedLM(answer)
    example = rows()[0]
    done = rollout or Rollout(
        "r",
        example,
        dspy.Prediction(answer="x"),
        ((program, {"question": example.question}, dspy.Prediction(answer="x")),),
        0.0,
        "Use the shop's list.",
        callers=("self",),
    )
    return Graph(program, Engine(lm)).step(instructions or {"self": "Say it."}, [done]), lm


def update_or_feedback(request):
    asked = "IMPROVED_VARIABLE> tags" in request.last
    return "<IMPROVED_VARIABLE>Say it by the list.</IMPROVED_VARIABLE>" if asked else "Mention the list."


def test_a_step_asks_for_a_gradient_per_edge_and_one_update():
    after, lm = step(update_or_feedback)
    assert after == {"self": "Say it by the list."}
    loss_to_answer, answer_to_instruction, update = lm.requests
    assert "Use the shop's list." in loss_to_answer.last
    assert rows()[0].question in answer_to_instruction.last
    assert "Mention the list." in update.last


def test_an_optimizer_that_ignores_the_tags_is_an_index_error():
    with pytest.raises(IndexError):
        step(lambda request: "I would rather not.")


def test_calls_keep_what_the_lm_was_made_with():
    from combee_textgrad._graph import Engine

    class Recording:
        def complete(self, request):
            self.config, self.system = request.config, request.system
            return dspy.lm15.Response(
                id=None,
                model=request.model,
                message=dspy.lm15.Message.assistant([dspy.lm15.TextPart("fine")]),
                finish_reason="stop",
                usage=dspy.lm15.Usage(input_tokens=1, output_tokens=1, total_tokens=2),
            )

    engine = Recording()
    lm = dspy.LM("scripted/x", engine=engine, temperature=0.7, max_tokens=77, cache=False)
    assert Engine(lm)("Improve it.", system_prompt="Be brief.") == "fine"
    assert (engine.config.temperature, engine.config.max_tokens) == (0.7, 77)
    assert "Be brief." in str(engine.system)


def test_an_empty_update_keeps_the_prompt():
    def empty(request):
        asked = "IMPROVED_VARIABLE> tags" in request.last
        return "<IMPROVED_VARIABLE> </IMPROVED_VARIABLE>" if asked else "Mention the list."

    assert step(empty)[0] == {"self": "Say it."}


def test_a_rollout_without_a_call_teaches_nothing_and_costs_nothing():
    after, lm = step(update_or_feedback, rollout=Rollout("r", rows()[0], None, (), 0.0, error="KeyError: x"))
    assert after == {"self": "Say it."}
    assert not lm.requests


@pytest.mark.parametrize(
    ("params", "argument"),
    [
        ({"batch_size": 0}, "batch_size"),
        ({"constraints": "short"}, "constraints"),
        ({"constraints": [3]}, "constraints"),
    ],
)
def test_wrong_parameters_are_refused_by_name(params, argument):
    with pytest.raises(ArgumentError) as caught:
        TextGrad(**params).validate()
    assert caught.value.argument == argument
