"""Programs with dspy.Flex parts, whose code is proposed as GEPA proposes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dspy
import pytest
from dspy.primitives.local_interpreter import LocalInterpreter

from combee_dspy import Search, load_candidate
from combee_dspy.exceptions import ArgumentValueError
from tests.worlds import World, events, rows


class Flexible(dspy.Module):
    def __init__(self) -> None:
        super().__init__()
        self.flex = dspy.Flex("question -> answer", interpreter_factory=LocalInterpreter)
        self.other = dspy.Flex("question -> answer", interpreter_factory=LocalInterpreter)

    def forward(self, question: str) -> dspy.Prediction:
        return self.flex(question=question)


class CodeProposer:
    """Changes each source a little, and notes how it was called; the first few times it fails."""

    def __init__(self, failures: int = 0) -> None:
        self.calls: list[tuple[list[str], set[str]]] = []
        self._failures = failures

    def __call__(
        self,
        candidate: Any,
        reflective_dataset: Any,
        components_to_update: list[str],
        task_descriptions: Any,
        context_blurbs: Any,
    ) -> dict[str, str]:
        self.calls.append(
            (list(components_to_update), set(reflective_dataset[components_to_update[0]][0]))
        )
        if len(self.calls) <= self._failures:
            raise ValueError("one bad answer of the code LM")
        return {
            name: f"{candidate[name]}\n# version {len(self.calls)}" for name in components_to_update
        }


def traced(
    gold: Any,
    pred: Any,
    trace: Any = None,
    pred_name: Any = None,
    pred_trace: Any = None,
    program_trace: Any = None,
) -> Any:
    # Only DSPy's own evaluation of Flex programs hands the trace over.
    return dspy.Prediction(score=0.9 if program_trace is None else 0.1, feedback="f")


def compiled(world: World, proposer: CodeProposer, place: Path, **kwargs: Any) -> Any:
    given = {"max_metric_calls": 40, "reflection_minibatch_size": 3, **kwargs}
    return world.compile(
        Flexible(),
        metric=traced,
        code_proposer=proposer,
        component_selector="all",
        train=6,
        validation=4,
        heldout=4,
        log_dir=place,
        **given,
    )


def test_one_code_edit_an_update(world: World, tmp_path: Path) -> None:
    proposer = CodeProposer()
    program = compiled(world, proposer, tmp_path, operators=["insert", "few-shot-swap"])
    report = program.combee_report
    assert proposer.calls
    assert all(
        call == (["flex", "other"], {"Inputs", "Generated Outputs", "Feedback"})
        for call in proposer.calls
    )
    candidates = [
        event
        for event in events(tmp_path, "candidate")
        if event["operator"] == "instruction_proposer"
    ]
    assert len(candidates) == len(proposer.calls)
    # Every score comes from one kind of evaluation.
    assert (report.seed_score, report.heldout.before) == (pytest.approx(0.1), pytest.approx(0.1))
    # The program's calls are the task's.
    assert set(report.costs.by_role) == {"task"}
    assert report.costs.by_role["task"].calls == len(world.task_lm.requests)
    loaded = load_candidate(Flexible(), tmp_path, candidates[0]["candidate"])
    assert "# version 1" in loaded.flex.module_src


def test_a_code_proposer_that_fails_has_proposed_nothing(world: World, tmp_path: Path) -> None:
    proposer = CodeProposer(failures=1)
    compiled(world, proposer, tmp_path)
    assert len(proposer.calls) > 1
    (error,) = events(tmp_path, "error")
    assert "one bad answer" in error["error"]
    assert rows(tmp_path, "SELECT 1 FROM effect WHERE key LIKE 'proposal/%'")


def test_code_that_does_not_bind_scores_the_failure_score(world: World, tmp_path: Path) -> None:
    class Breaking(CodeProposer):
        def __call__(self, candidate: Any, **given: Any) -> dict[str, str]:  # type: ignore[override]  # by keyword
            return {"flex": "class ((", "other": candidate["other"]}

    program = compiled(world, Breaking(), tmp_path, skip_perfect_score=False)
    assert program.combee_report.best_score == pytest.approx(0.1)
    failed = rows(
        tmp_path, "SELECT DISTINCT error FROM effect WHERE kind = 'rollout' AND error IS NOT NULL"
    )
    assert any("the code did not bind" in row["error"] for row in failed)


def test_no_trunk_grows_code(world: World) -> None:
    with pytest.raises(ArgumentValueError, match=r"dspy\.Flex parts"):
        world.compile(Flexible(), search=Search(keep="trunk"))


def test_code_gets_gepas_search_with_its_defaults(world: World, tmp_path: Path) -> None:
    world.compile(
        Flexible(), metric=traced, train=6, validation=4, log_dir=tmp_path, max_metric_calls=40
    )
    columns = ("keep", "search.staleness", "specs.controller.params.min_updates")
    asked = ", ".join(f"description ->> '$.{name}' AS \"{name}\"" for name in columns)
    (run,) = rows(tmp_path, f"SELECT {asked} FROM run")  # noqa: S608 - the names above
    assert [run[name] for name in columns] == ["pareto", 1, 4]
