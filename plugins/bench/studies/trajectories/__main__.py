"""A playbook from 60 long trajectories of an agent, beside serial ACE on the same ones.

From plugins/bench, beside plugins/appworld or plugins/terminal-bench, whose READMEs say how to set
them up: ``PYTHONPATH=../agents:../appworld python -m studies.trajectories appworld``, or
``PYTHONPATH=../agents:../terminal-bench python -m studies.trajectories terminal-bench``. The
agent and the readers are scripted: no language model.
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated

import dspy
import typer

from combee_dspy import Budget, Combee, Search
from combee_dspy.costs import Tariff
from combee_dspy.records import Rollout
from combee_dspy.rollouts import RolloutJob, run_rollout
from combee_dspy.testing import ScriptedLM, ScriptedRequest, as_chat, as_json
from combee_dspy.traces import Trace
from studies.trajectories.appworld import APPWORLD
from studies.trajectories.terminal import TERMINAL
from studies.trajectories.worlds import Scene, World

WORLDS = {"appworld": APPWORLD, "terminal-bench": TERMINAL}


def _answer(request: ScriptedRequest, fields: dict[str, object]) -> str:
    return as_chat(fields) if "[[ ## completed ## ]]" in request.text else as_json(fields)


@dataclass
class Actor:
    """The scripted agent; another draw goes another way around, and may have a habit."""

    world: World
    draw: int = 0
    habit: str = ""

    def __call__(self, request: ScriptedRequest) -> str:
        """Return the next step."""
        advice = f"{request.system} {self.habit}"
        steps = self.world.plan(request.last.partition("trajectory")[0], advice, self.draw)
        done = request.last.count("] printed:")
        finished = str(done == len(steps) - 1)
        # A world asks for one of the two beside the code.
        fields = {"code": steps[done], "finished": finished, "outcome": "Done.", "summary": "Done."}
        return _answer(request, fields)


@dataclass
class Reader:
    """The scripted readers: they see what feedback says, take their time, and are counted."""

    world: World
    seconds: float
    calls: int = 0
    tokens: Counter[str] = field(default_factory=Counter)

    def __call__(self, request: ScriptedRequest) -> str:
        """Return lessons, an insight, or that nothing is to be compared."""
        time.sleep(self.seconds)
        text = request.text.replace("\\n", "\n")
        rules = self.world.rules
        lessons = [rule for rule in rules.values() if rule in text]
        lessons += [rule for check, rule in rules.items() if re.search(check, text)]
        lessons = list(dict.fromkeys(lessons))
        if "`contradictory`" in request.text or "[[ ## contradictory ## ]]" in request.text:
            names = ("same", "contradictory", "narrower", "empty")
            fields: dict[str, object] = {name: [] for name in names}
        elif "key_insight" in request.text:
            fields = {"bullet_tags": {}, "section": "", "key_insight": " ".join(lessons[-1:])}
        else:
            fields = {"lessons": lessons}
        answer = _answer(request, fields)
        self.calls += 1
        self.tokens.update(read=len(request.text) // 4, written=len(answer) // 4)
        return answer


def run(scene: Scene, program: dspy.Module, example: dspy.Example, actor: Actor) -> Rollout:
    """Let an agent act on one task."""
    job = RolloutJob(program, example, example.task_id, scene.metric, 0.0, Tariff(None), False)
    lm = ScriptedLM(actor, model="scripted/agent")
    with dspy.context(lm=lm, adapter=dspy.ChatAdapter()):
        return run_rollout(job)


def record(world: World, scene: Scene, count: int) -> list[Trace]:
    """Return trajectories of an agent that lacks both rules; every second one had one of them.

    Who breaks the first rule gets no verdict on the second: only the others can teach it.
    """
    traces = []
    for number in range(count):
        example = scene.train[number % len(scene.train)]
        habit = world.habit if number // len(scene.train) % 2 else ""
        rollout = run(scene, scene.program, example, Actor(world, number, habit))
        inputs = dict(example.inputs().items())
        calls = rollout.calls
        outputs = rollout.prediction
        traces.append(Trace(f"s{number}", inputs, outputs, calls, rollout.score, rollout.feedback))
    return traces


def learn(
    scene: Scene, traces: Sequence[Trace], reader: Reader, *, serial: bool
) -> tuple[dspy.Module, float]:
    """Return the program with its playbook, and the seconds that learning it took."""
    lm = ScriptedLM(reader, model="scripted/reader")
    serially = {
        "reflection_minibatch_size": 1,
        "num_threads": 1,
        "search": Search(staleness=0),
        "aggregator": "union",
    }
    arguments = serially if serial else {"num_threads": 32}
    combee = Combee(
        scene.metric,
        reflection_lm=lm,
        artifact="playbook",
        budget=Budget(epochs=1),
        tracker=(),
        seed=0,
        **arguments,
    )
    started = time.monotonic()
    program = combee.compile(scene.program, traces=traces)
    return program, time.monotonic() - started


def main(
    name: Annotated[str, typer.Argument(help="appworld or terminal-bench.")] = "appworld",
    count: Annotated[int, typer.Option(help="Trajectories.")] = 60,
    seconds: Annotated[float, typer.Option(help="What one answer of a reader takes.")] = 2.0,
    workers: Annotated[int, typer.Option(help="Worlds.")] = 2,
) -> None:
    """Print what each way learned, and what it took."""
    world = WORLDS[name]
    with world.open(workers) as scene:
        traces = record(world, scene, count)
        sizes = [len(json.dumps(trace.calls[-1].inputs)) // 4 for trace in traces]
        steps = sorted(len(trace.calls) for trace in traces)
        typer.echo(
            f"{count} trajectories, {steps[0]} to {steps[-1]} steps, {min(sizes):,} to"
            f" {max(sizes):,} tokens, mean score"
            f" {sum(trace.score or 0.0 for trace in traces) / count:.2f}"
        )
        typer.echo("| | held-out tasks done | seconds | calls | tokens read | tokens written |")
        typer.echo("| --- | ---: | ---: | ---: | ---: | ---: |")
        typer.echo(f"| untouched | {_score(world, scene, scene.program)} | | | | |")
        for way, serial in (("serial ACE", True), ("Combee", False)):
            reader = Reader(world, seconds)
            program, took = learn(scene, traces, reader, serial=serial)
            cells = f"{took:.1f} | {reader.calls} | {reader.tokens['read']:,}"
            written = f"{reader.tokens['written']:,}"
            typer.echo(f"| {way} | {_score(world, scene, program)} | {cells} | {written} |")


def _score(world: World, scene: Scene, program: dspy.Module) -> str:
    done = sum(run(scene, program, example, Actor(world)).score for example in scene.heldout)
    return f"{done:.0f} of {len(scene.heldout)}"


if __name__ == "__main__":
    typer.run(main)
