"""The guards a user sets, checked against the program, and what a proposer is told of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

import dspy
from pydantic import Field

from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.guards._text import own_description, placeholders
from combee_dspy.reflections import estimate_tokens
from combee_dspy.strategies import parameters


@parameters
class Guards:
    """What no edit may break.

    Attributes:
        max_tokens: Estimated tokens that a component's instruction and field
            descriptions may take together, the seed's own text included; ``None``
            for no budget.
        keep: Protected rules. Each stays verbatim in every text whose seed, or
            whose parent, has it. A mapping from component to rules says where each
            belongs.
        max_copied_words: The longest run of words that an instruction or a field
            description may share with a training example; a longer one is a copy.
            12 makes a run of 13 words a copy, the length by which GPT-3's authors
            told test examples seen in training from chance (arXiv 2005.14165,
            appendix C). ``None`` allows copies.
        anchors: Examples that every minibatch holds and that no child may lose.
    """

    max_tokens: Annotated[int, Field(ge=1)] | None = None
    keep: tuple[str, ...] | dict[str, tuple[str, ...]] = ()
    max_copied_words: Annotated[int, Field(ge=1)] | None = 12
    anchors: tuple[dspy.Example, ...] = ()

    def __post_init__(self) -> None:
        rules = [rule for found in self.keep.values() for rule in found] if isinstance(self.keep, dict) else self.keep
        if not all(rule.strip() for rule in rules):
            raise ArgumentValueError("Guards.keep", self.keep, "holds an empty rule", "Every text contains it.")

    def rules(self, component: str) -> tuple[str, ...]:
        """Return the rules that may apply to a component, each once."""
        found = self.keep.get(component, ()) if isinstance(self.keep, dict) else self.keep
        return tuple(dict.fromkeys(found))

    def rules_in(self, component: str, *texts: str) -> tuple[str, ...]:
        """Return a component's rules that one of the texts has."""
        return tuple(rule for rule in self.rules(component) if any(rule in text for text in texts))


def text_tokens(instruction: str, descriptions: Mapping[str, str]) -> int:
    """Return the estimated tokens that count against a component's budget."""
    shown = (own_description(name, text) for name, text in descriptions.items())
    return estimate_tokens(instruction) + sum(map(estimate_tokens, shown))


def check_program(
    guards: Guards, instructions: Mapping[str, str], descriptions: Mapping[str, Mapping[str, str]] | None = None
) -> None:
    """Check guards against a program's instructions and field descriptions by component, before anything is spent.

    Raises:
        ArgumentValueError: A protected rule is in none of the program's texts, or not in the component
            that it names; or a component's own text already passes the budget.
    """
    described = descriptions or {}
    texts = {name: [text, *described.get(name, {}).values()] for name, text in instructions.items()}
    if isinstance(guards.keep, dict):
        for component, rules in guards.keep.items():
            if component not in texts:
                remedy = f"Components: {', '.join(texts) or 'none'}."
                raise ArgumentValueError("Guards.keep", component, "names no component of the program", remedy)
            _check_present(rules, texts[component], f"the text of {component!r}")
    else:
        _check_present(guards.keep, [text for found in texts.values() for text in found], "any text of the program")
    for component, text in instructions.items():
        tokens = text_tokens(text, described.get(component, {}))
        if guards.max_tokens is not None and tokens > guards.max_tokens:
            problem = f"is less than the {tokens:,} estimated tokens that {component!r} starts with"
            remedy = "Raise it, or shorten the program."
            raise ArgumentValueError("Guards.max_tokens", guards.max_tokens, problem, remedy)


def _check_present(rules: Sequence[str], texts: Sequence[str], where: str) -> None:
    for rule in rules:
        if not any(rule in text for text in texts):
            remedy = "Write it into the program's instruction word for word, or leave it out of keep."
            raise ArgumentValueError("Guards.keep", rule, f"is a rule that is not in {where}", remedy)


def guard_notes(
    guards: Guards, component: str, text: str, descriptions: Mapping[str, str] | None = None, seed: str | None = None
) -> str:
    """Return what a proposer must know of the guards before it writes; empty where nothing binds it.

    Args:
        guards: The guards.
        component: Which component is about to be edited.
        text: Its current instruction.
        descriptions: Its current field descriptions, which share the budget.
        seed: The seed's instruction, whose placeholders must stay; the current one where it is not known.
    """
    notes: list[str] = []
    if guards.max_tokens is not None:
        now = text_tokens(text, descriptions or {})
        notes.append(
            f"- The whole text may take at most {guards.max_tokens:,} tokens (about "
            f"{max(1, guards.max_tokens * 3 // 4):,} words); it takes {now:,} now. A longer text is thrown away."
        )
    kept = guards.rules_in(component, text, *([seed] if seed else ()))
    if kept:
        notes.append("- These rules stay in the text word for word:")
        notes.extend(f"  {rule}" for rule in kept)
    names = placeholders(text if seed is None else seed)
    if names:
        notes.append(f"- These placeholders stay in the text exactly as they are: {' '.join(names)}")
    if guards.max_copied_words is not None and notes:
        # Alone it is not worth a longer prompt: the default guards leave every prompt as it is.
        notes.append(f"- No more than {guards.max_copied_words} words in a row may be copied from an example.")
    return "\n".join(notes)
