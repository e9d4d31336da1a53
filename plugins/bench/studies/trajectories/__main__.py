"""A playbook from 60 long trajectories of an agent, beside serial ACE on the same ones.

From plugins/bench, beside plugins/appworld (its README says how to set it up):
``PYTHONPATH=../appworld python -m studies.trajectories``. The world is the miniature AppWorld,
whose apps and checks are real. The agent and the readers are scripted: no language model.
"""

from __future__ import annotations

import json
import random
import re
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import dspy
import typer

from combee_dspy import Budget, Combee, Search
from combee_dspy.costs import Tariff
from combee_dspy.records import Rollout
from combee_dspy.rollouts import RolloutJob, run_rollout
from combee_dspy.testing import ScriptedLM, ScriptedRequest, as_chat, as_json
from combee_dspy.traces import Trace

FINISH = (
    "When the work is done, call apis.supervisor.complete_task, with answer= where the task is a"
    " question."
)
PAGES = "Ask for page_limit=20 where you search or list: a page holds five otherwise."
RULES = (FINISH, PAGES)

_LOGIN = """
passwords = {{row["account_name"]: row["password"] for row in apis.supervisor.show_account_passwords()}}
email = apis.supervisor.show_profile()["email"]
token = apis.{app}.login(username=email, password=passwords["{app}"])["access_token"]
print("logged in to {app}")
"""  # noqa: E501 - the agent's own code
_LOOKS = (
    "print(apis.api_docs.show_app_descriptions())",
    "print(apis.api_docs.show_api_descriptions(app_name='simple_note'))",
    "print(apis.api_docs.show_api_descriptions(app_name='todoist'))",
    "print(apis.api_docs.show_api_doc(app_name='simple_note', api_name='search_notes'))",
    "print(apis.api_docs.show_api_doc(app_name='todoist', api_name='show_projects'))",
    "print(apis.supervisor.show_profile())",
    "print(apis.simple_note.list_everything())",
    "print(apis.todoist.show_projects())",
)
_MOST_STEPS = 50


def plan_steps(task: str, advice: str, draw: int) -> list[str]:
    """Return what the scripted agent carries out: a long way around, then the work."""
    stream = random.Random(f"{task}/{draw}")  # noqa: S311 - a seed
    steps = [stream.choice(_LOOKS) for _ in range(stream.randint(25, 40))]
    app, work = _work(task, ", page_limit=20" if PAGES in advice else "")
    steps += [_LOGIN.format(app=app), work]
    if FINISH in advice:
        steps.append("apis.supervisor.complete_task(answer=answer)")
    return steps


def _work(task: str, pages: str) -> tuple[str, str]:
    if match := re.search(r"titled '(.+?)' with the content '(.+?)'", task):
        fields = f"title={match[1]!r}, content={match[2]!r}"
        note = f"apis.simple_note.create_note(access_token=token, {fields})"
        return "simple_note", f"print({note})\nanswer = None"
    if match := re.search(r"the tag '(.+?)'", task):
        notes = f"apis.simple_note.search_notes(access_token=token, tags=[{match[1]!r}]{pages})"
        return "simple_note", f"answer = len({notes})\nprint(answer)"
    projects = f"apis.todoist.show_projects(access_token=token{pages})"
    counted = f"[item for item in {projects} if not item['is_inbox']]"
    return "todoist", f"answer = len({counted})\nprint(answer)"


def _answer(request: ScriptedRequest, fields: dict[str, object]) -> str:
    return as_chat(fields) if "[[ ## completed ## ]]" in request.text else as_json(fields)


@dataclass
class Actor:
    """The scripted agent; another draw goes another way around, and may have a habit."""

    draw: int = 0
    habit: str = ""

    def __call__(self, request: ScriptedRequest) -> str:
        """Return the next step."""
        advice = f"{request.system} {self.habit}"
        steps = plan_steps(request.last.partition("trajectory")[0], advice, self.draw)
        done = request.last.count("] printed:")
        fields = {"code": steps[done], "finished": str(done == len(steps) - 1), "outcome": "Done."}
        return _answer(request, fields)


@dataclass
class Reader:
    """The scripted readers: they see what feedback says, take their time, and are counted."""

    seconds: float
    calls: int = 0
    tokens: Counter[str] = field(default_factory=Counter)

    def __call__(self, request: ScriptedRequest) -> str:
        """Return lessons, an insight, or that nothing is to be compared."""
        time.sleep(self.seconds)
        text = request.text.replace("\\n", "\n")
        lessons = [rule for rule in RULES if rule in text]
        if re.search(r"Not met:\s*- assert the task was marked complete", text):
            lessons.append(FINISH)
        if re.search(r"- assert answers match\.\s+'\d", text):
            lessons.append(PAGES)
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


@dataclass(frozen=True, slots=True)
class Scene:
    """The miniature world: a program that acts in it, and its tasks."""

    program: dspy.Module
    metric: object
    train: Sequence[dspy.Example]
    heldout: Sequence[dspy.Example]


@contextmanager
def open_scene(workers: int) -> Iterator[Scene]:
    """Make a miniature world and start its servers."""
    from combee_appworld import AppWorld, install, make_miniature

    with tempfile.TemporaryDirectory() as folder:
        root = make_miniature(Path(folder) / "root", install())
        appworld = AppWorld(
            root, heldout="test", agent="code", workers=workers, max_iters=_MOST_STEPS
        ).load()
        program = appworld.program()
        try:
            yield Scene(
                program, appworld.metric, appworld.train.examples, appworld.heldout.examples
            )
        finally:
            program.pool.close()


def run(
    scene: Scene, program: dspy.Module, example: dspy.Example, draw: int, habit: str = ""
) -> Rollout:
    """Let an agent act on one task."""
    job = RolloutJob(program, example, example.task_id, scene.metric, 0.0, Tariff(None), False)
    lm = ScriptedLM(Actor(draw, habit), model="scripted/agent")
    with dspy.context(lm=lm, adapter=dspy.ChatAdapter()):
        return run_rollout(job)


def record(scene: Scene, count: int) -> list[Trace]:
    """Return trajectories of an agent that lacks both rules; every second one had one of them.

    Who never says that the work is done gets no verdict on the answer: only those can teach that it
    is wrong.
    """
    traces = []
    for number in range(count):
        example = scene.train[number % len(scene.train)]
        habit = FINISH if number // len(scene.train) % 2 else ""
        rollout = run(scene, scene.program, example, number, habit)
        inputs = dict(example.inputs().items())
        calls = rollout.calls
        outcome = {"outcome": "Done."}
        traces.append(Trace(f"s{number}", inputs, outcome, calls, rollout.score, rollout.feedback))
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
    count: Annotated[int, typer.Option(help="Trajectories.")] = 60,
    seconds: Annotated[float, typer.Option(help="What one answer of a reader takes.")] = 2.0,
    workers: Annotated[int, typer.Option(help="Worlds.")] = 2,
) -> None:
    """Print what each way learned, and what it took."""
    with open_scene(workers) as scene:
        traces = record(scene, count)
        sizes = [len(json.dumps(trace.calls[-1].inputs)) // 4 for trace in traces]
        steps = sorted(len(trace.calls) for trace in traces)
        typer.echo(
            f"{count} trajectories, {steps[0]} to {steps[-1]} steps, {min(sizes):,} to"
            f" {max(sizes):,} tokens, mean score"
            f" {sum(trace.score or 0.0 for trace in traces) / count:.2f}"
        )
        typer.echo("| | held-out tasks done | seconds | calls | tokens read | tokens written |")
        typer.echo("| --- | ---: | ---: | ---: | ---: | ---: |")
        typer.echo(f"| untouched | {_score(scene, scene.program)} | | | | |")
        for name, serial in (("serial ACE", True), ("Combee", False)):
            reader = Reader(seconds)
            program, took = learn(scene, traces, reader, serial=serial)
            cells = f"{took:.1f} | {reader.calls} | {reader.tokens['read']:,}"
            written = f"{reader.tokens['written']:,}"
            typer.echo(f"| {name} | {_score(scene, program)} | {cells} | {written} |")


def _score(scene: Scene, program: dspy.Module) -> str:
    done = sum(run(scene, program, example, 0).score for example in scene.heldout)
    return f"{done:.0f} of {len(scene.heldout)}"


if __name__ == "__main__":
    typer.run(main)
