"""Children of one parent: operators edit, guards refuse, another operator tries again."""

from __future__ import annotations

import contextvars
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from combee_dspy.engine.candidates import Candidate, demonstrations_key, fields_key
from combee_dspy.engine.placing import within
from combee_dspy.engine.scanning import Scanned
from combee_dspy.exceptions import ArgumentTypeError
from combee_dspy.operators import Operator, OperatorInput, draw_operators, encode_demonstrations, encode_fields
from combee_dspy.records import Edit, Refusal
from combee_dspy.reducer_core import apply_operator
from combee_dspy.strategies import PredictFn, StrategyContext
from combee_dspy.streams import derive

__all__ = ["Breeder", "Child", "ComponentError", "EditGuard", "TextGuard", "labels_of"]


def labels_of(operators: Sequence[Operator]) -> list[str]:
    """Return one label per operator: its name, with a number behind it where an earlier one has the same."""
    seen: Counter[str] = Counter()
    labels = []
    for operator in operators:
        seen[operator.name] += 1
        labels.append(operator.name if seen[operator.name] == 1 else f"{operator.name} {seen[operator.name]}")
    return labels


class ComponentError(Exception):
    """An operator raised; the cause is what it raised.

    Attributes:
        component: The component it was editing.
        error: What it raised.
    """

    def __init__(self, component: str, error: Exception) -> None:
        super().__init__(component)
        self.component = component
        self.error = error


class EditGuard(Protocol):
    """Judges one component's edit by itself: budgets, protected rules, copied text."""

    def __call__(self, component: str, given: OperatorInput, edit: Edit) -> Refusal | None:
        """Return why the edit is refused, or ``None``."""
        ...


class TextGuard(Protocol):
    """Judges a whole child beside the best candidates and the children made before it."""

    def __call__(
        self,
        candidate: Mapping[str, str],
        parent: Mapping[str, str],
        siblings: Sequence[Mapping[str, str]],
        *,
        near_parent: bool = False,
    ) -> Refusal | None:
        """Return why the child is refused, or ``None``."""
        ...


@dataclass(slots=True)
class Child:
    """A child in the making.

    Attributes:
        parent: The parent's texts.
        operator: Position of the operator that makes it, or made it.
        texts: The components that change; empty as long as there is no edit.
        refusals: ``(operator's name, reason)`` of everything that was refused on the way.
        tried: Positions of the operators that have been tried.
    """

    parent: Candidate
    operator: int
    texts: dict[str, str] = field(default_factory=dict)
    refusals: list[tuple[str, str]] = field(default_factory=list)
    tried: list[int] = field(default_factory=list)

    @property
    def candidate(self) -> dict[str, str]:
        """The whole child."""
        return {**self.parent, **self.texts}


class Breeder:
    """Makes the children of an iteration.

    All operators of a round work at once; what they made is judged in the order
    of the children, so the outcome does not depend on who is first. A child that
    is refused draws another operator by the current weights and tries again.

    Args:
        operators: Those that children may draw from.
        edit_guard: Judges edits.
        text_guard: Judges whole children.
        predict: Makes the way to the LM for a child's further draws, by their number.
        draws: How many operators one child may try.
        seed: The run's seed.
        pool: Where operators work. Not owned.
        scrub: Takes keys out of a text. An edit is scrubbed before it is judged and named: a candidate is known by
            the hash of its texts.
    """

    def __init__(  # noqa: PLR0913 - one wiring point
        self,
        operators: Sequence[Operator],
        edit_guard: EditGuard,
        text_guard: TextGuard,
        predict: Callable[[int], PredictFn],
        *,
        draws: int,
        seed: int,
        pool: ThreadPoolExecutor,
        scrub: Callable[[str], str] = lambda text: text,
    ) -> None:
        self._scrub = scrub
        self._operators = tuple(operators)
        self._edit_guard = edit_guard
        self._text_guard = text_guard
        self._predict = predict
        self._draws = draws
        self._seed = seed
        self._pool = pool

    def breed(
        self,
        children: Sequence[Child],
        scanned: Mapping[str, Scanned],
        weights: Mapping[str, float],
        *,
        iteration: int,
        place: str,
        started: Iterable[Mapping[str, str]] = (),
    ) -> None:
        """Fill in the children's texts, in place.

        Args:
            children: They share a parent and a minibatch.
            scanned: What was learned, by component.
            weights: Probability of each operator, by label (see :func:`labels_of`).
            iteration: The iteration.
            place: What tells this group apart from others in the iteration.
            started: Children made before in this iteration.
        """
        siblings = list(started)
        pending = list(enumerate(children))
        for attempt in range(self._draws):
            made = [
                (number, child, self._submit(child.operator, scanned, attempt, number)) for number, child in pending
            ]
            refused: list[tuple[int, Child]] = []
            for number, child, edits in made:
                child.tried.append(child.operator)
                texts = self._texts(child, scanned, edits)
                verdict = self._judged(child, texts, siblings) if texts else None
                if verdict is not None:
                    child.refusals.append((self._name(child), verdict.reason))
                if texts and verdict is None:
                    child.texts.update(texts)
                    siblings.append(child.candidate)
                else:
                    refused.append((number, child))
            pending = [
                (number, child)
                for number, child in refused
                if self._redraw(child, children, scanned, weights, f"{iteration}/{place}/{number}/{attempt}")
            ]
            if not pending:
                return

    def _judged(self, child: Child, texts: Mapping[str, str], siblings: Sequence[Mapping[str, str]]) -> Refusal | None:
        near = self._operators[child.operator].near_parent
        return self._text_guard({**child.parent, **texts}, child.parent, siblings, near_parent=near)

    def apply(self, operator: int, scanned: Mapping[str, Scanned], child: Child, attempt: int = 0) -> dict[str, str]:
        """Return one operator's edit of a child's parent as texts; what was refused is noted in the child."""
        return self._texts(child, scanned, self._submit(operator, scanned, attempt))

    def _submit(
        self, operator: int, scanned: Mapping[str, Scanned], attempt: int, number: int = 0
    ) -> dict[str, Future[Edit | Refusal]]:
        return {
            component: self._pool.submit(
                # A fresh copy per task: two threads may not run in one context.
                contextvars.copy_context().run,
                apply_operator,
                self._operators[operator],
                operator,
                one.given,
                one.context if not attempt else self._again(one.context, attempt, number),
            )
            for component, one in scanned.items()
        }

    def _again(self, context: StrategyContext, attempt: int, number: int) -> StrategyContext:
        # Two children may come to one operator in one round: in one place they would make one text.
        place = f"{context.place}/draw {attempt} of child {number}"
        predict = within(self._predict(attempt), f"{place}/{context.component}", context.iteration)
        return replace(context, place=place, predict=predict)

    def _texts(
        self, child: Child, scanned: Mapping[str, Scanned], edits: Mapping[str, Future[Edit | Refusal]]
    ) -> dict[str, str]:
        """Return what may stand of one operator's edits.

        Raises:
            ComponentError: The operator raised, or returned what cannot be carried.
        """
        texts: dict[str, str] = {}
        for component, edit in edits.items():
            try:
                outcome = self._scrubbed(edit.result())
                refused = outcome if isinstance(outcome, Refusal) else None
                if isinstance(outcome, Edit):
                    refused = self._edit_guard(component, scanned[component].given, outcome)
                if isinstance(outcome, Edit) and refused is None:
                    made = self._encoded(outcome, component, child)
                    texts.update(made)
                    refused = None if made else Refusal(f"{component} would not change")
            except Exception as error:
                raise ComponentError(component, error) from error
            if refused is not None:
                child.refusals.append((self._name(child), refused.reason))
        return texts

    def _scrubbed(self, outcome: Edit | Refusal) -> Edit | Refusal:
        if not isinstance(outcome, Edit):
            return outcome
        text, fields, demonstrations = outcome.instruction, outcome.field_descriptions, outcome.demonstrations
        return replace(
            outcome,
            instruction=self._scrub(text) if isinstance(text, str) else text,
            field_descriptions=fields and {name: _strings(said, self._scrub) for name, said in fields.items()},
            demonstrations=demonstrations
            and tuple(
                replace(one, inputs=_strings(one.inputs, self._scrub), outputs=_strings(one.outputs, self._scrub))
                for one in demonstrations
            ),
        )

    def _encoded(self, edit: Edit, component: str, child: Child) -> dict[str, str]:
        """Return an edit as components of the candidate.

        Raises:
            ArgumentTypeError: The edit holds values that are not JSON.
        """
        texts: dict[str, str] = {}
        if edit.instruction is not None:
            texts[component] = edit.instruction
        hidden: list[tuple[str, str, Callable[[], str]]] = []
        if edit.demonstrations is not None:
            found = edit.demonstrations
            hidden.append(("demonstrations", demonstrations_key(component), lambda: encode_demonstrations(found)))
        if edit.field_descriptions is not None:
            fields = edit.field_descriptions
            hidden.append(("field descriptions", fields_key(component), lambda: encode_fields(fields)))
        for what, key, encode in hidden:
            try:
                encoded = encode()
            except ArgumentTypeError as error:
                problem = f"returned {what} for {component} that are no plain JSON or do not come back from it"
                remedy = "Use plain JSON values: lists rather than tuples, string keys, finite numbers."
                raise ArgumentTypeError(f"operator {self._name(child)!r}", edit, problem, remedy) from error
            if key in child.parent:
                texts[key] = encoded
            else:
                child.refusals.append((self._name(child), f"{component} was started without {what} as a component"))
        return {key: text for key, text in texts.items() if text != child.parent[key]}

    def _redraw(
        self,
        child: Child,
        children: Sequence[Child],
        scanned: Mapping[str, Scanned],
        weights: Mapping[str, float],
        place: str,
    ) -> bool:
        """Give a refused child another operator; return whether there is one."""
        # What applies the scan's lessons would make the text again that it made for a sibling.
        taken = {place for other in children for place in (*other.tried, other.operator)}
        # Where no scan ran, nobody may ask for lessons now: the call would be one that nobody planned.
        learned = any(one.given.lessons.lessons or one.given.lessons.nodes for one in scanned.values())
        labels = labels_of(self._operators)
        left = {
            labels[position]: weights.get(labels[position], 1.0)
            for position, operator in enumerate(self._operators)
            if position not in (taken if operator.needs_lessons else child.tried)
            and (learned or not operator.needs_lessons)
        }
        if not left or len(child.tried) >= self._draws:
            return False
        child.operator = labels.index(draw_operators(left, 1, derive(self._seed, "redraw", place))[0])
        return True

    def _name(self, child: Child) -> str:
        return self._operators[child.operator].name


def _strings(value: Any, change: Callable[[str], str]) -> Any:
    """Return a JSON value with its texts changed; whatever is no JSON value is left for whoever encodes it."""
    if type(value) is str:
        return change(value)
    if type(value) is list:
        return [_strings(one, change) for one in value]
    if type(value) is dict:
        return {key: _strings(one, change) for key, one in value.items()}
    return value
