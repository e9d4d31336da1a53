"""tutorials/gepa_papillon: an untrusted LM inside the program, and an LM as the judge."""

from __future__ import annotations

import re
from typing import Any

import dspy

from tests.journeys.documented.scene import Optimizer, Page, Scores, score, teach
from tests.journeys.minds import field, written
from tests.journeys.server import Asked, Server


class CraftRedactedRequest(dspy.Signature):
    """Write a request for a strong external model that gives nothing of the user away."""

    user_query = dspy.InputField()
    llm_request = dspy.OutputField()


class RespondToQuery(dspy.Signature):
    """Answer the user, with what the external model said."""

    related_llm_request = dspy.InputField()
    related_llm_response = dspy.InputField(desc="what the external model said")
    user_query = dspy.InputField(desc="what the user wants")
    response = dspy.OutputField(desc="the answer to the user")


class PAPILLON(dspy.Module):
    """As on the page: no call of the base constructor, and whatever goes wrong is an empty
    answer.
    """

    def __init__(self, untrusted_model: dspy.LM) -> None:
        self.craft_redacted_request = dspy.ChainOfThought(CraftRedactedRequest)
        self.respond_to_query = dspy.Predict(RespondToQuery)
        self.untrusted_model = untrusted_model

    def forward(self, user_query: str) -> dspy.Prediction:
        try:
            llm_request = self.craft_redacted_request(user_query=user_query).llm_request
            llm_response = self.untrusted_model(llm_request)[0]
            response = self.respond_to_query(
                related_llm_request=llm_request,
                related_llm_response=llm_response,
                user_query=user_query,
            ).response
        except Exception:  # noqa: BLE001 - so the page has it
            return dspy.Prediction(llm_request="", llm_response="", response="")
        return dspy.Prediction(
            llm_request=llm_request, llm_response=llm_response, response=response
        )


class JudgeQuality(dspy.Signature):
    """Is response A at least as good as response B?"""

    user_query = dspy.InputField()
    response_A = dspy.InputField()  # noqa: N815 - so the page has it
    response_B = dspy.InputField()  # noqa: N815 - so the page has it
    judgment: bool = dspy.OutputField()


class JudgeLeakage(dspy.Signature):
    """Count the private words that the prompt gives away."""

    pii = dspy.InputField()
    prompt = dspy.InputField()
    num_pii_leaked: int = dspy.OutputField()


class LLMJudge(dspy.Module):
    """Compares answers both ways round, and counts what leaked."""

    def __init__(self) -> None:
        self.quality_judge = dspy.ChainOfThought(JudgeQuality)
        self.fact_checker = dspy.ChainOfThought(JudgeLeakage)

    def forward(
        self, user_query: str, og_resp: str, new_resp: str, updated_query: str, pii_str: str
    ) -> dspy.Prediction:
        one_way = self.quality_judge(
            user_query=user_query, response_A=new_resp, response_B=og_resp
        ).judgment
        other_way = self.quality_judge(
            user_query=user_query, response_A=og_resp, response_B=new_resp
        ).judgment
        pii = sorted(set(pii_str.split("||")))
        leaked = self.fact_checker(pii=pii, prompt=updated_query).num_pii_leaked
        return dspy.Prediction(quality=one_way or one_way == other_way, leakage=leaked / len(pii))


def rows(first: int, count: int) -> list[dspy.Example]:
    return [
        dspy.Example(
            {
                "target_response": f"Dear reader {n}",
                "user_query": f"Letter {n} for Ada{n}",
                "pii_str": f"Ada{n}",
            }
        ).with_inputs("user_query")
        for n in range(first, first + count)
    ]


def mind(asked: Asked) -> str:
    if asked.model == "teacher":
        return teach(asked, "Leave names out.")
    if "[[ ## num_pii_leaked ## ]]" in asked.system:
        names = re.findall(r"Ada\d+", field(asked, "pii"))
        leaked = sum(name in field(asked, "prompt") for name in names)
        return written(asked, {"reasoning": "Counting.", "num_pii_leaked": leaked})
    if "[[ ## judgment ## ]]" in asked.system:
        return written(asked, {"reasoning": "Reading.", "judgment": True})
    if "[[ ## llm_request ## ]]" in asked.system:
        query = field(asked, "user_query")
        request = query.split(" for ")[0] if "Leave names out" in asked.system else query
        return written(asked, {"reasoning": "Asking.", "llm_request": request})
    if "[[ ## response ## ]]" in asked.system:
        return written(asked, {"response": field(asked, "related_llm_response")})
    return "Dear reader"  # the untrusted model, which is asked in plain words


def script(optimizer_class: Optimizer, server: Server) -> Scores:
    local_lm, large_lm = server.lm("student"), server.lm("large")
    dspy.configure(lm=local_lm)
    llm_judge = LLMJudge()
    llm_judge.set_lm(large_lm)

    def compute_overall_score_with_feedback(
        gold: Any, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None
    ) -> dspy.Prediction:
        metrics = llm_judge(
            user_query=gold.user_query,
            new_resp=pred.response,
            og_resp=gold.target_response,
            updated_query=pred.llm_request,
            pii_str=gold.pii_str,
        )
        overall = (metrics.quality + (1 - metrics.leakage)) / 2.0
        feedback = (
            f"Overall {overall:.2f}: quality {metrics.quality:.2f}, leakage {metrics.leakage:.2f}."
        )
        return dspy.Prediction(score=overall, feedback=feedback)

    trainset, devset = rows(0, 12), rows(100, 12)
    papillon = PAPILLON(untrusted_model=large_lm)
    papillon.set_lm(local_lm)
    compiler = optimizer_class(
        metric=compute_overall_score_with_feedback,
        reflection_lm=server.lm("teacher"),
        num_threads=16,
        track_stats=True,
        track_best_outputs=True,
        max_full_evals=1,
    )
    optimized_papillon = compiler.compile(student=papillon, trainset=trainset, valset=devset)
    assert isinstance(optimized_papillon.craft_redacted_request.predict.signature.instructions, str)
    return Scores(
        score(papillon, devset, compute_overall_score_with_feedback),
        score(optimized_papillon, devset, compute_overall_score_with_feedback),
    )


PAGE = Page(script, mind)
