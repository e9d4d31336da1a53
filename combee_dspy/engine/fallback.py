"""A scan's result against the nodes below it: the better one makes the child."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from combee_dspy.aggregators import node_lessons
from combee_dspy.engine.adapter import CombeeAdapter
from combee_dspy.engine.breeding import Breeder, Child
from combee_dspy.engine.candidates import candidate_id
from combee_dspy.engine.guarding import Guarding
from combee_dspy.engine.scanning import Scanned
from combee_dspy.engine.settings import Settings
from combee_dspy.events import CandidateScreened, Event
from combee_dspy.operators import Operator
from combee_dspy.records import Rollout
from combee_dspy.streams import derive

__all__ = ["BestNode"]

_ALTERNATIVES = 3


class BestNode:
    """Lets a node's lessons stand in for the root's where they do better on a few examples.

    The root's merge may have lost what one of its children still holds. The same
    operator applies the lessons of the children with the most of them, up to
    three, and all run on the same few examples of the minibatch as the root's
    child. A node stands in only when its mean is higher: a tie keeps the root.
    The best of several on a few examples looks better than it is; acceptance and
    validation, which follow, do not read these scores.

    Args:
        adapter: Buys the screen's rollouts, which count in the run's budget.
        breeder: Applies operators.
        operators: Those of the run.
        guarding: What a stand-in may not break either.
        emit: Where events go.
        settings: The run's seed, and how many examples a screen has.
    """

    def __init__(
        self,
        adapter: CombeeAdapter,
        breeder: Breeder,
        operators: Sequence[Operator],
        guarding: Guarding,
        emit: Callable[[Event], None],
        settings: Settings,
    ) -> None:
        self._adapter = adapter
        self._breeder = breeder
        self._operators = operators
        self._guarding = guarding
        self._emit = emit
        self._settings = settings

    def stand_in(
        self, children: Sequence[Child], scanned: Mapping[str, Scanned], rollouts: Sequence[Rollout], iteration: int
    ) -> None:
        """Replace the texts of children whose lessons are better at a lower node, in place."""
        for child in children:
            if child.texts and self._operators[child.operator].needs_lessons:
                self._compare(child, scanned, rollouts, iteration)

    def _compare(
        self, child: Child, scanned: Mapping[str, Scanned], rollouts: Sequence[Rollout], iteration: int
    ) -> None:
        others = self._alternatives(child, scanned)
        if not others:
            return
        stream = derive(self._settings.seed, "best-node", iteration)
        picked = sorted(stream.sample(range(len(rollouts)), min(self._settings.screen, len(rollouts))))
        rows = [rollouts[position].example for position in picked]
        candidates = [{**child.candidate, **texts} for texts in ({}, *others)]
        root, *scores = (fmean(found) for found in self._adapter.screen(candidates, rows))
        best = max(range(len(scores)), key=lambda number: scores[number])
        for number, score in enumerate(scores):
            passed = number == best and score > root
            self._emit(
                CandidateScreened(
                    iteration=iteration,
                    candidate_id=candidate_id(candidates[number + 1]),
                    against_id=candidate_id(candidates[0]),
                    size=len(rows),
                    score=score,
                    against_score=root,
                    passed=passed,
                    reason="a node below the root does better" if passed else "the root's lessons do as well",
                )
            )
        if scores[best] > root:
            child.texts.update(others[best])

    def _alternatives(self, child: Child, scanned: Mapping[str, Scanned]) -> list[dict[str, str]]:
        """Return the texts that the nodes below the root would have made."""
        nodes = {
            component: sorted(
                (node.lessons for node in node_lessons(one.scan) if not node.root),
                key=lambda found: -len(found.lessons),
            )[:_ALTERNATIVES]
            for component, one in scanned.items()
        }
        found: list[dict[str, str]] = []
        for number in range(max((len(one) for one in nodes.values()), default=0)):
            lower = {
                component: replace(one, given=replace(one.given, lessons=nodes[component][number]))
                for component, one in scanned.items()
                if number < len(nodes[component])
            }
            trial = Child(child.parent, child.operator)
            texts = self._breeder.apply(child.operator, lower, trial)
            whole = {**child.candidate, **texts}
            if texts and whole != child.candidate and self._guarding.likeness(whole, child.parent) is None:
                found.append(texts)
        return found
