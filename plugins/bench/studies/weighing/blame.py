"""What tests of lines wrongly drop and keep, by the number of validation rows.

The package's own tests run on a text with planted lines; the study's task model answers. From
plugins/bench: ``python -m studies.weighing.blame``.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from types import SimpleNamespace
from typing import Annotated, Any, cast

import typer

from combee_dspy.artifacts import Instruction
from combee_dspy.lessons import Book, Narrow, Taught, lesson_id, write_section
from combee_dspy.records import Rollout
from combee_dspy.search._books import Books
from combee_dspy.search._candidates import Candidate, Member, Row
from combee_dspy.search._effects import Effects
from combee_dspy.search._pool import Pool
from combee_dspy.search._proving import Proving
from combee_dspy.search._trials import BLAMED, Trials, blame
from combee_dspy.streams import derive
from combee_dspy.weighers import Posterior
from studies.weighing.laws import answer
from studies.weighing.tasks import HEADER, Truth, make_rows, make_truth
from studies.weighing.tasks import Row as TaskRow
from studies.weighing.words import (
    ATTRIBUTES,
    CHANNELS,
    Meaning,
    harmful,
    read_lines,
    rule,
    word,
)

_COMPONENT = "self"
# A wrong exception concerns a third of the rows of one rule: a fortieth of all.
_RULES, _OWN, _BEFORE, _EXCEPTIONS = 13, 5, 3, 3
_VALIDATIONS = 4

KINDS = ("good", "harms 1 in 7", "harms 1 in 40", "true, waits", "false, waits")
"""Planted lines: rules and a true exception, two harmful lines, exceptions that wait."""


@dataclass(frozen=True, slots=True)
class Planted:
    """A text with planted lines.

    Attributes:
        before: Meanings that an earlier text had as well.
        added: Those that a new text adds, in its order.
        waiting: Exceptions that the book does not serve.
        kind: What each line is, one of :data:`KINDS`.
    """

    truth: Truth
    own: tuple[Meaning, ...]
    before: tuple[Meaning, ...]
    added: tuple[Meaning, ...]
    waiting: tuple[Meaning, ...]
    kind: Mapping[Meaning, str]


def plant(stream: random.Random) -> Planted:
    """Draw a truth, a prompt that states some of it, and lessons: right ones and two that harm."""
    truth = make_truth(_RULES, stream)
    codes = sorted(truth.rules.values())
    rules = [rule(category, code) for category, code in truth.rules.items()]
    narrow = []
    for general in stream.sample(rules[_OWN:], 2 * _EXCEPTIONS):
        code = stream.choice([other for other in codes if other != general.code])
        narrow.append(rule(general.category, code, stream.choice(ATTRIBUTES)))
    true, false = narrow[:_EXCEPTIONS], narrow[_EXCEPTIONS:]
    truth = Truth(truth.rules, {(one.category, one.condition): one.code for one in true})
    imposed = harmful(stream.choice(CHANNELS))
    learned = rules[_OWN:]
    added = [*learned[_BEFORE:], true[0], imposed, false[0]]
    stream.shuffle(added)
    kind = dict.fromkeys((*learned, true[0]), "good")
    kind |= {imposed: "harms 1 in 7", false[0]: "harms 1 in 40"}
    kind |= dict.fromkeys(true[1:], "true, waits") | dict.fromkeys(false[1:], "false, waits")
    return Planted(
        truth,
        tuple(rules[:_OWN]),
        tuple(learned[:_BEFORE]),
        tuple(added),
        (*true[1:], *false[1:]),
        kind,
    )


@dataclass(eq=False)
class World:
    """What the tests of lines need of a run: rollouts on validation rows, and a pool."""

    rows: Sequence[TaskRow]
    flip: float
    seed: int
    room: int = 0
    used: int = 0
    members: list[Member] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.validation = tuple(
            Row("validation", index, row.example(), str(index))
            for index, row in enumerate(self.rows)
        )
        self.size, self.draws = len(self.rows), 1
        self.texts = SimpleNamespace(example=lambda example: example)
        self.log = SimpleNamespace(emit=lambda *_, **__: None)
        self.purse = self
        self._scores: dict[tuple[str, int], float] = {}

    async def rollout(self, text: Candidate, row: Row, *_: object, **__: object) -> Rollout:
        """Return a score, the same whenever a text runs on a row, as a run's journal does."""
        key = text.id, row.index
        if key not in self._scores:
            self.used += 1
            self._scores[key] = self._score(text, row.index)
        return Rollout(row.hash, self._scores[key])

    def _score(self, text: Candidate, index: int) -> float:
        row, stream = self.rows[index], derive(self.seed, text.id, index)
        said = [meaning for _, meaning in read_lines(text.texts[_COMPONENT])]
        right = answer(row.case, said, stream) == row.label
        return float(right != (stream.random() < self.flip))

    async def validate(
        self, text: Candidate, rows: Sequence[Row], step: int
    ) -> dict[int, tuple[Rollout, ...]]:
        """Run a text on rows."""
        return {row.index: (await self.rollout(text, row),) for row in rows}

    def join(
        self,
        text: Candidate,
        parents: Sequence[int],
        step: int,
        rollouts: Mapping[int, Sequence[Rollout]],
    ) -> Member:
        """Take a text in with its scores."""
        scores = {index: drawn[0].score for index, drawn in rollouts.items()}
        member = Member(len(self.members), text, tuple(parents), step, scores)
        self.members.append(member)
        return member

    async def validated(self, text: Candidate, step: int) -> Member:
        """Validate a text and take it in."""
        parents = [member.index for member in self.members[-1:]]
        return self.join(text, parents, step, await self.validate(text, self.validation, step))


async def run_trial(rows: int, flip: float, trial: int) -> dict[str, Counter[str]]:
    """Test a planted text; return, after the search of an update and at the end, what moved.

    Counts are by kind: lines that are no longer served, or served that waited, and rollouts.
    """
    stream = derive(trial, "blame", str(rows), str(flip))
    planted = plant(stream)
    worded = {one: word(one, stream) for one in (*planted.own, *planted.kind)}
    own = "\n".join([HEADER, *(f"- {worded[one]}" for one in planted.own)])
    books = _books(planted, worded, own, stream)
    world = World(make_rows(planted.truth, rows, stream), flip, trial)
    effects, pool = cast("Effects", world), cast("Pool", world)
    lines = [worded[one] for one in planted.before]
    old = await world.validated(Candidate({_COMPONENT: own}), -1)
    old = await world.validated(Candidate({_COMPONENT: write_section(own, lines)}), 0)
    lines += [worded[one] for one in planted.added]
    new = await world.validated(Candidate({_COMPONENT: write_section(own, lines)}), 1)
    moved = {}
    world.used = 0
    trials = Trials(effects, pool, 1, BLAMED)
    edits = await blame(
        trials,
        books.artifact,
        books.now,
        old.candidate,
        old.scores,
        new.candidate,
        new.scores,
    )
    for component, edit in edits:
        books.edit(component, [edit], 1)
    moved["after an update"] = _moved(planted, worded, books, world)
    world.room, world.used = _VALIDATIONS * rows, 0
    asked = {component: books.known(component, new.step) for component in books.now}
    proving = Proving(effects, pool, books, 1.0, lambda _old, _new: True)
    await proving.prove(new, new.candidate, asked, None)
    moved["at the end"] = _moved(planted, worded, books, world)
    return moved


def _books(
    planted: Planted, worded: Mapping[Meaning, str], own: str, stream: random.Random
) -> Books:
    """Return the books of a run that has learned the planted lines, a harmful one from one row."""
    books = Books(
        Instruction(),
        Candidate({_COMPONENT: own}),
        (_COMPONENT,),
        Posterior(lone=0, few=0),
        lambda *_, **__: None,
    )
    born = {
        **dict.fromkeys(planted.before, 0),
        **dict.fromkeys((*planted.added, *planted.waiting), 1),
    }
    book = Book()
    for number, (meaning, update) in enumerate(born.items()):
        served_well = planted.kind[meaning] == "good" and not meaning.condition
        examples = stream.randint(1, 3) if served_well else 1
        sources = tuple(f"{number}.{example}" for example in range(examples))
        book = book.add([Taught(worded[meaning], sources)], update)
    general = {one.category: one for one in born if not one.condition}
    edits = [
        Narrow(lesson_id(worded[one]), lesson_id(worded[general[one.category]]))
        for one in planted.waiting
    ]
    ids = {lesson_id(worded[one]): ("waiting", "planted") for one in planted.waiting}
    learned: Any = SimpleNamespace(plan=SimpleNamespace(step=1), lessons={}, reflections={})
    books.now[_COMPONENT] = book.edit(edits).book.with_states(cast("Any", ids))
    books.learn(learned)
    return books


def _moved(
    planted: Planted, worded: Mapping[Meaning, str], books: Books, world: World
) -> Counter[str]:
    moved = Counter({"rollouts": world.used})
    for meaning, kind in planted.kind.items():
        lesson = books.now[_COMPONENT].find(lesson_id(worded[meaning]))
        if lesson is not None:
            moved[kind] += (lesson.state == "served") == kind.endswith("waits")
    return moved


async def _run_cell(rows: int, flip: float, trials: int) -> list[dict[str, Counter[str]]]:
    return [await run_trial(rows, flip, trial) for trial in range(trials)]


def main(
    trials: Annotated[int, typer.Option(help="Texts a cell.")] = 200,
    rows: Annotated[str, typer.Option(help="Validation rows, by commas.")] = "20,40,80",
    flips: Annotated[str, typer.Option(help="Chances that a score flips.")] = "0,0.1",
) -> None:
    """Print what tests drop and restore, in percent of the planted lines of a kind."""
    planted = Counter(plant(derive(0, "blame")).kind.values())
    typer.echo("| rows | a score flips | when | " + " | ".join(KINDS) + " | rollouts |")
    typer.echo("| ---: | ---: | --- |" + " ---: |" * (len(KINDS) + 1))
    for flip in flips.split(","):
        for count in rows.split(","):
            cell = asyncio.run(_run_cell(int(count), float(flip), trials))
            for when in cell[0]:
                shares = [
                    f"{fmean(100 * one[when][kind] / planted[kind] for one in cell):.1f}"
                    for kind in KINDS
                ]
                used = f"{fmean(one[when]['rollouts'] for one in cell):.0f}"
                typer.echo(f"| {count} | {flip} | {when} | {' | '.join(shares)} | {used} |")


if __name__ == "__main__":
    typer.run(main)
