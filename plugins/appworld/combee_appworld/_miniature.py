"""Writes a miniature world: a few tasks over AppWorld's real apps, through its own classes.

Runs inside AppWorld's environment, as a script: ``python _miniature.py ROOT``. It
imports AppWorld and nothing of combee_dspy. The world is made here and now, since
AppWorld's licence asks that its apps and data are not published as plain text.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(sys.argv[1]).resolve()
# Both are read when AppWorld is imported.
os.environ["APPWORLD_ROOT"] = str(ROOT)
os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"

from appworld.apps import get_all_apps  # noqa: E402
from appworld.apps.api_lib import set_local_date_and_time, unset_local_date_and_time  # noqa: E402
from appworld.collections.api_docs import ApiDocCollection  # noqa: E402
from appworld.collections.models import ModelCollection  # noqa: E402
from appworld.common.constants import (  # noqa: E402
    CANARY_STRING,
    DB_VERSION,
    DEFAULT_SYSTEM_DATETIME,
)  # noqa: E402
from appworld.ground_truth import GroundTruth  # noqa: E402
from appworld.task import Task  # noqa: E402

PERSON = {
    "first_name": "Nora",
    "last_name": "Field",
    "email": "nora.field@example.com",
    "phone_number": "5550100200",
}
PASSWORD = "quiet-harbour-7"  # noqa: S105 - of a person who does not exist
APPS = get_all_apps(skip_admin=True)

_HEAD = """
def evaluate(test, public_data, private_data, main_user, models, ground_truth_answer):
    task = models.end.supervisor.Task.all()[0]
"""

_COMPLETED = '''
    with test("""
    assert the task was marked complete.
    """):
        test.case(task.status, "==", "success")
'''

_ANSWER = '''
    with test("""
    assert answers match.
    """):
        test.answer(json.loads(task.answer), ground_truth_answer)
'''

_NO_CHANGE = '''
    with test("""
    assert no model changes.
    """):
        test.case(models.changed_model_names(), "==", set())
'''

_NOTE = '''
    with test("""
    assert only simple_note.Note has changed.
    """):
        test.case(models.changed_model_names(), "==", {"simple_note.Note"})

    with test("""
    obtain added, updated and removed notes and assert that one was added and none was updated or removed.
    """):
        added, updated, removed = models.changed_records("simple_note.Note")
        test.case(len(added), "==", 1)
        test.case(len(updated) + len(removed), "==", 0)

    with test("""
    assert the added note has the title and the content that were asked for.
    """):
        test.case(added[0].title, "==", private_data.title)
        test.case(added[0].content, "==", private_data.content)
'''


@dataclass(frozen=True)
class Kind:
    """A kind of task: what is asked, what it needs, and what is checked."""

    app: str
    instruction: str
    checks: str
    labels: Mapping[str, str]
    solution: str
    answer: Callable[[Mapping[str, Any]], Any]


def _requirement(check: str) -> str:
    return check.split('"""')[1].strip()


_LABELS = {
    "completed": {_requirement(_COMPLETED): "no_op_fail"},
    "answer": {_requirement(_ANSWER): "no_op_fail"},
    "unchanged": {_requirement(_NO_CHANGE): "no_op_pass"},
    "note": {part.split('"""')[0].strip(): "no_op_fail" for part in _NOTE.split('with test("""')[1:]},
}

_LOGIN = """
passwords = {{row["account_name"]: row["password"] for row in apis.supervisor.show_account_passwords()}}
email = apis.supervisor.show_profile()["email"]
token = apis.{app}.login(username=email, password=passwords["{app}"])["access_token"]
"""

KINDS = {
    "add": Kind(
        "simple_note",
        "Add a note titled {title!r} with the content {content!r} to my Simple Note account.",
        _COMPLETED + _NOTE,
        {**_LABELS["completed"], **_LABELS["note"]},
        "apis.simple_note.create_note(access_token=token, title={title!r}, content={content!r})",
        lambda data: None,
    ),
    "count": Kind(
        "simple_note",
        "How many of my notes in Simple Note have the tag {tag!r}?",
        _COMPLETED + _ANSWER + _NO_CHANGE,
        {**_LABELS["completed"], **_LABELS["answer"], **_LABELS["unchanged"]},
        "notes = apis.simple_note.search_notes(access_token=token, tags=[{tag!r}], page_limit=20)\nanswer = len(notes)",
        lambda data: sum(data["tag"] in note["tags"] for note in data["notes"]),
    ),
    "projects": Kind(
        "todoist",
        "How many projects do I have in Todoist, the inbox not counted?",
        _COMPLETED + _ANSWER + _NO_CHANGE,
        {**_LABELS["completed"], **_LABELS["answer"], **_LABELS["unchanged"]},
        "projects = apis.todoist.show_projects(access_token=token, page_limit=20)\n"
        "answer = len([project for project in projects if not project['is_inbox']])",
        lambda data: len(data["projects"]),
    ),
}

# AppWorld's challenge set needs apps that no other set needs; here that is todoist.
SETS: Mapping[str, Sequence[tuple[str, str]]] = {
    "train": (("aaaaaa1", "add"), ("aaaaaa2", "count")),
    "dev": (("bbbbbb1", "add"), ("bbbbbb2", "count")),
    "test_normal": (("cccccc1", "add"), ("cccccc2", "count")),
    "test_challenge": (("dddddd1", "projects"),),
}
TASKS_OF_A_SCENARIO = 3

_TITLES = (
    "Groceries",
    "Packing list",
    "Books to read",
    "Garden",
    "Repairs",
    "Presents",
    "Recipes",
    "Errands",
    "Films",
)
_CONTENTS = (
    "milk and rye bread",
    "two jumpers",
    "a field guide",
    "prune the roses",
    "mend the gate",
    "a scarf",
)
_TAGS = ("work", "home", "travel")
_PROJECTS = ("Kitchen", "Choir", "Allotment", "Thesis", "Holiday")


def _data(number: int) -> dict[str, Any]:
    """Return what a task's world and its question hold; a function of its number alone."""
    tag, other = _TAGS[number % 3], _TAGS[(number + 1) % 3]
    # More notes with the tag than one page of the API shows, which is five by default.
    notes = [
        {"title": f"Note {one}", "content": f"Line {one}", "tags": [tag if one % 4 else other]}
        for one in range(8 + number % 4)
    ]
    return {
        "title": f"{_TITLES[number % len(_TITLES)]} {number}",
        "content": _CONTENTS[number % len(_CONTENTS)],
        "tag": tag,
        "notes": notes,
        "projects": _PROJECTS[: 2 + number % 3],
    }


def _write_docs(path: Path) -> None:
    # ApiDocCollection.save() would write formats that nothing here reads, with packages that are
    # not installed.
    path.mkdir(parents=True, exist_ok=True)
    for app, apis in ApiDocCollection.build(load_apps=tuple(APPS)).items():
        docs = {name: {**doc, "canary_string": CANARY_STRING} for name, doc in apis.items()}
        (path / f"{app}.json").write_text(json.dumps(docs), encoding="utf-8")


def _write_base(path: Path) -> None:
    world = ModelCollection.load(
        to_db_home_path=":memory:base",
        from_db_home_path=":memory:base",
        load_apps=[*APPS, "admin"],
        create_db=True,
    )
    world.admin.MainUser(**PERSON, sex="female", birthday="1990-04-02").save()
    world.save(str(path), delete_if_exists=True)
    world.close()


def _write_task(task_id: str, kind: Kind, number: int, base: Path) -> None:
    data = _data(number)
    person = {
        "first_name": PERSON["first_name"],
        "last_name": PERSON["last_name"],
        "email": PERSON["email"],
    }
    world = ModelCollection.load(
        to_db_home_path=f":memory:task_input-{task_id}",
        from_db_home_path=str(base),
        load_apps=[*APPS, "admin"],
    )
    instruction = kind.instruction.format(**data)
    supervisor = world.supervisor.Supervisor(**PERSON, sex="female", birthday="1990-04-02")
    supervisor.save()
    world.supervisor.Task(supervisor_id=supervisor.id, instruction=instruction).save()
    for app in ("simple_note", "todoist"):
        world.supervisor.AccountPassword(supervisor_id=supervisor.id, account_name=app, password=PASSWORD).save()
    notes_user = world.simple_note.User(**person, password=PASSWORD, verified=True)
    notes_user.save()
    for note in data["notes"]:
        world.simple_note.Note(user_id=notes_user.id, pinned=False, **note).save()
    todo_user = world.todoist.User(**person, password=PASSWORD, verified=True)
    todo_user.save()
    for name in ("Inbox", *data["projects"]):
        project = world.todoist.Project(user_id=todo_user.id, name=name, is_inbox=name == "Inbox")
        project.save()
        world.todoist.ProjectCollaboratorLink(project_id=project.id, user_id=todo_user.id).save()

    answer = kind.answer(data)
    finish = "apis.supervisor.complete_task(answer=answer)" if answer is not None else "apis.supervisor.complete_task()"
    body = "\n".join([_LOGIN.format(app=kind.app), kind.solution.format(**data), finish])
    solution = "def solution(apis, requester):\n" + "".join(f"    {line}\n" for line in body.splitlines() if line)
    task = Task(
        id=task_id,
        instruction=instruction,
        supervisor=world.admin.MainUser.find_one(email=PERSON["email"]),
        datetime=DEFAULT_SYSTEM_DATETIME,
        allowed_apps=list(APPS),
        db_version=DB_VERSION,
        model_collection=world,
    )
    task.ground_truth = GroundTruth(
        task_id=task_id,
        required_apps=[kind.app],
        public_data={},
        private_data={"title": data["title"], "content": data["content"]},
        answer=answer,
        evaluation_code="import json\n" + _HEAD + kind.checks,
        solution_code=solution,
        compiled_solution_code=solution,
        generator_code="",
        test_data=[{"requirement": name, "label": label} for name, label in kind.labels.items()],
        metadata={
            "difficulty": 1,
            "mode": "full",
            "num_solution_code_lines": len(solution.splitlines()),
        },
        api_calls=[],
    )
    task.save(delete_if_exists=True, ground_truth_mode="full", model_collection_format="changes")
    task.close()


def main() -> None:
    """Write the world below ``ROOT/data``."""
    base = ROOT / "data" / "base_dbs"
    sets = ROOT / "data" / "datasets"
    sets.mkdir(parents=True, exist_ok=True)
    _write_docs(ROOT / "data" / "api_docs" / "standard")
    freezer = set_local_date_and_time(DEFAULT_SYSTEM_DATETIME)
    try:
        _write_base(base)
        number = 0
        for name, scenarios in SETS.items():
            ids = []
            for scenario, kind in scenarios:
                for place in range(1, TASKS_OF_A_SCENARIO + 1):
                    number += 1
                    ids.append(f"{scenario}_{place}")
                    _write_task(ids[-1], KINDS[kind], number, base)
            (sets / f"{name}.txt").write_text("".join(f"{one}\n" for one in ids), encoding="utf-8")
    finally:
        unset_local_date_and_time(freezer)
    # AppWorld prints of its own: the last line is what a caller reads.
    sys.stdout.write("\n" + json.dumps({"tasks": number}) + "\n")


if __name__ == "__main__":
    main()
