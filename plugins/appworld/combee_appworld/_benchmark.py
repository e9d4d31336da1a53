"""AppWorld as a benchmark: tasks in pinned splits, an agent to start from, and the world's own
verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import dspy
from combee_agents import SessionAgent, SessionLimits, SessionMetric, SessionPool
from combee_dspy.benchmarks import Availability, Benchmark, Card, LoadedBenchmark, Split, check_pins
from combee_dspy.exceptions import DataSourceError
from combee_dspy.hashing import row_hash
from combee_dspy.strategies import parameters
from pydantic import Field

from combee_appworld._data import HOW, NAME, find_root, read_rows
from combee_appworld._environment import AppWorldEnvironment
from combee_appworld._scores import scenario_of
from combee_appworld._setup import Installation, find_installation

__all__ = ["ActInAppWorld", "AppWorld"]

LICENCE = "Apache-2.0; AppWorld asks that its data and apps are not published as plain text"
CITATION = (
    "Trivedi et al., AppWorld: A Controllable World of Apps and People for Benchmarking Interactive"
    " Coding Agents, ACL 2024, arXiv 2407.18901"
)
_HELDOUT: Mapping[str, tuple[str, ...]] = {
    "test_normal": ("test_normal",),
    "test_challenge": ("test_challenge",),
    "test": ("test_normal", "test_challenge"),
}

DESCRIPTION = """\
Carry out Python code in the world and return what it printed; variables stay between calls. Everything is done
through `apis`: `apis.api_docs.show_app_descriptions()`, `apis.api_docs.show_api_descriptions(app_name=...)` and
`apis.api_docs.show_api_doc(app_name=..., api_name=...)` say what there is, `apis.<app>.<api>(...)` calls it. Print what
you need to see."""
"""What an agent is told of its one tool."""


class ActInAppWorld(dspy.Signature):
    """Carry out a task on behalf of your supervisor, in a world of apps, on your own: nobody
    answers questions.

    Your supervisor's accounts are in `apis.supervisor`, passwords included. Look an API up before
    you call it. At the end, mark the task complete through `apis.supervisor`, with the answer where
    the task asks for one.
    """

    instruction: str = dspy.InputField(desc="The task.")
    supervisor: dict[str, str] = dspy.InputField(desc="The person whose task it is.")
    now: str = dspy.InputField(desc="Date and time in the world.")
    outcome: str = dspy.OutputField(desc="What was done, in one sentence.")


class _Worker:
    """Makes environments. A class of its own so that programs can be pickled."""

    def __init__(self, root: Path, installation: Installation, seconds_a_step: int) -> None:
        self.root = root
        self.installation = installation
        self.seconds_a_step = seconds_a_step

    def __call__(self) -> AppWorldEnvironment:
        return AppWorldEnvironment(self.root, self.installation, seconds_a_step=self.seconds_a_step)


@parameters
class AppWorld(Benchmark):
    """AppWorld: tasks over nine everyday apps, done by writing code, judged by the state of the
    world after it.

    ``train`` is train, ``dev`` is validation, and the test sets are held out.
    Score 1 is a task all of whose requirements are met (task goal completion);
    :func:`combee_appworld.goal_completion` gives scenario goal completion too. The
    feedback names the requirements that are not met, and what was found instead.

    Args:
        root: An ``APPWORLD_ROOT``; by default that variable's. Read, never written.
        heldout: ``"test_normal"``, ``"test_challenge"``, or ``"test"`` for both.
        agent: The style of the default program, as for :class:`combee_agents.SessionAgent`.
        workers: The most worlds at once, each a process of about 300 MB.
        max_iters: The most steps of an agent.
        seconds_a_step: After how long AppWorld ends a piece of code, and tells the agent.
        pin: Split name to required digest.
    """

    name: ClassVar[str] = NAME
    card: ClassVar[Card | None] = Card(
        task="Carry out an everyday task over nine simulated apps, by writing code.",
        licence=LICENCE,
        citation=CITATION,
        size="90 train, 57 dev, 168 test_normal, 417 test_challenge",
        sources=("path APPWORLD_ROOT (holds data/; see combee appworld status)",),
        scoring="1 where all requirements of the task are met, by the world's own checks.",
    )

    root: str | Path | None = None
    heldout: Literal["test_normal", "test_challenge", "test"] = "test_normal"
    agent: Literal["react", "code"] = "react"
    workers: Annotated[int, Field(ge=1, strict=True)] = 8
    max_iters: Annotated[int, Field(ge=1, strict=True)] = 30
    seconds_a_step: Annotated[int, Field(ge=1, strict=True)] = 100
    pin: Mapping[str, str] | None = None

    def availability(self) -> Availability:
        """Return whether AppWorld and its data are on this machine."""
        if find_installation() is None:
            return Availability(False, "AppWorld is not installed; run `combee appworld setup`")
        try:
            return Availability(True, str(find_root(self.root)))
        except DataSourceError as error:
            return Availability(False, f"{error.source}: {error.reason}")

    def load(self) -> LoadedBenchmark:
        """Read the tasks. No world is started before a program is called.

        Raises:
            DataSourceError: AppWorld is not installed, its data cannot be read, or is not what is
                pinned.
        """
        root = find_root(self.root)
        installation = find_installation()
        if installation is None:
            remedy = "Run `combee appworld setup` once; it needs PyPI and about a minute."
            raise DataSourceError(self.name, str(root), "AppWorld is not installed", remedy)
        splits = {
            "train": _split("train", read_rows(root, "train")),
            "validation": _split("validation", read_rows(root, "dev")),
            "heldout": _split("heldout", [row for name in _HELDOUT[self.heldout] for row in read_rows(root, name)]),
        }
        _check_apart(root, splits)
        check_pins(self.name, str(root), splits, self.pin)
        return LoadedBenchmark(
            name=self.name,
            task=f"{self.name}, held out: {self.heldout}",
            source=f"{root} (AppWorld 0.1.3, environment {installation.digest[:12]})",
            licence=LICENCE,
            citation=CITATION,
            train=splits["train"],
            validation=splits["validation"],
            heldout=splits["heldout"],
            signature=ActInAppWorld,
            program=self._program(root, installation),
            metric=SessionMetric(),
            notes=(("Scores are task goal completion; scenarios are in combee_appworld.goal_completion."),),
        )

    def _program(self, root: Path, installation: Installation) -> Callable[[], dspy.Module]:
        # AppWorld ends code that hangs, and tells the agent: what passes the limit of exec is the
        # server's fault. Many servers that load AppWorld's apps at once on few cores take minutes.
        limits = SessionLimits(start=300, open=300, exec=2.0 * self.seconds_a_step + 60)
        pool = SessionPool(
            _Worker(root, installation, self.seconds_a_step),
            self.workers,
            limits=limits,
            # The tasks' worlds are in their rows; what is left is the server, and where it ends
            # code.
            identity=f"appworld {installation.digest} {self.seconds_a_step}",
        )
        agent, max_iters = self.agent, self.max_iters

        def program() -> dspy.Module:
            return SessionAgent(pool, ActInAppWorld, agent=agent, max_iters=max_iters, description=DESCRIPTION)

        return program


def _split(name: str, rows: list[dict[str, Any]]) -> Split:
    examples = tuple(dspy.Example(**row).with_inputs("task_id", "instruction", "supervisor", "now") for row in rows)
    return Split(name, examples, tuple(row_hash(row) for row in rows))


def _check_apart(root: Path, splits: Mapping[str, Split]) -> None:
    """Require that no scenario is in two splits: its tasks differ in little more than names."""
    owners: dict[str, str] = {}
    for name, split in splits.items():
        for example in split.examples:
            owner = owners.setdefault(scenario_of(example.task_id), name)
            if owner != name:
                reason = f"scenario {scenario_of(example.task_id)} is in {owner} and in {name}"
                raise DataSourceError(NAME, str(root), reason, HOW)
