import dspy
import pytest
from combee_bench.baselines import BaselineTask, baseline_names, build_baseline
from combee_dspy.benchmarks import load_benchmark
from combee_dspy.exceptions import ArgumentError
from combee_dspy.records import PredictorCall, Rollout
from combee_dspy.testing import ScriptedLM
from combee_simulator import SimulatedConfig, SimulatedService, benchmark_task

from combee_textgrad import TextGrad

QUESTION = "What is piece number 0 of kind copper worth today?"


def test_it_is_found_by_name():
    assert "textgrad" in baseline_names()
    assert build_baseline("textgrad") == TextGrad()


def test_it_learns_what_a_service_can_learn(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = load_benchmark("formula-mini", task="compute", train=24, validation=8, heldout=24)
    with SimulatedService(SimulatedConfig(time_scale=0.0), benchmark_task(rows, base_rate=0.1)) as service:
        with dspy.context(lm=service.lm()):
            found = TextGrad().search(BaselineTask(rows.program(), rows, service.lm(), budget=80, threads=4, seed=0))
            scores = []
            for program in (rows.program(), found.program):
                answers = [program(**example.inputs()) for example in rows.heldout.examples]
                pairs = zip(rows.heldout.examples, answers, strict=True)
                scores.append(sum(rows.metric(example, answer).score for example, answer in pairs))
    assert scores[1] > scores[0]
    assert 40 < found.rollouts <= 80
    assert set(TextGrad().versions()) == {"dspy", "textgrad", "combee-dspy-textgrad"}
    assert not list(tmp_path.iterdir()), "textgrad's log of every prompt"


def step(answer, rollout=None):
    from combee_textgrad._graph import Engine, Graph

    lm = ScriptedLM(answer)
    call = PredictorCall("self", {"question": QUESTION}, {"answer": "x"})
    done = rollout or Rollout("r", 0.0, "Use the shop's list.", calls=(call,))
    return (
        Graph(dspy.Predict("question -> answer"), Engine(lm)).step({"self": "Say it."}, [done]),
        lm,
    )


def update_or_feedback(request):
    asked = "IMPROVED_VARIABLE> tags" in request.last
    return "<IMPROVED_VARIABLE>Say it by the list.</IMPROVED_VARIABLE>" if asked else "Mention the list."


def test_a_step_asks_for_a_gradient_per_edge_and_one_update():
    after, lm = step(update_or_feedback)
    assert after == {"self": "Say it by the list."}
    loss_to_answer, answer_to_instruction, update = lm.requests
    assert "Use the shop's list." in loss_to_answer.last
    assert QUESTION in answer_to_instruction.last
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
    after, lm = step(update_or_feedback, rollout=Rollout("r", 0.0, error="KeyError: x"))
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
        TextGrad(**params)
    assert caught.value.argument.startswith(f"TextGrad.{argument}")
