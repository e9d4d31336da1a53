"""The miniature AppWorld, whose apps and checks are real; its README says how to set it up."""

from __future__ import annotations

import random
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from studies.trajectories.worlds import Scene, World

__all__ = ["APPWORLD"]

FINISH = (
    "When the work is done, call apis.supervisor.complete_task, with answer= where the task is a"
    " question."
)
PAGES = "Ask for page_limit=20 where you search or list: a page holds five otherwise."

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


APPWORLD = World(
    {
        r"Not met:\s*- assert the task was marked complete": FINISH,
        r"- assert answers match\.\s+'\d": PAGES,
    },
    plan_steps,
    open_scene,
)
