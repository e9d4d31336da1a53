"""A scripted agent that knows the apps and two things too few, and a scripted proposer that reads
feedback.
"""

from __future__ import annotations

import json
import re

from combee_dspy.testing import ScriptedLM, ScriptedRequest, as_chat, as_json

FINISH = "Rule: when the work is done, call apis.supervisor.complete_task, with answer= where the task is a question."
PAGES = "Rule: ask for page_limit=20 where you search or list: a page holds five otherwise."

LOGIN = """
passwords = {{row["account_name"]: row["password"] for row in apis.supervisor.show_account_passwords()}}
email = apis.supervisor.show_profile()["email"]
token = apis.{app}.login(username=email, password=passwords["{app}"])["access_token"]
print("logged in to {app}")
"""


def _work(task: str, pages: str) -> tuple[str, str]:
    """Return the app, and the code that does the work and leaves `answer`."""
    add = re.search(r"titled '(.+?)' with the content '(.+?)'", task)
    if add:
        title, content = add.groups()
        made = f"apis.simple_note.create_note(access_token=token, title={title!r}, content={content!r})"
        return "simple_note", f"print({made})\nanswer = None"
    tag = re.search(r"the tag '(.+?)'", task)
    if tag:
        found = f"apis.simple_note.search_notes(access_token=token, tags=[{tag.group(1)!r}]{pages})"
        return "simple_note", f"answer = len({found})\nprint(answer)"
    found = f"apis.todoist.show_projects(access_token=token{pages})"
    return "todoist", f"answer = len([p for p in {found} if not p['is_inbox']])\nprint(answer)"


def steps_for(task: str, told: str) -> list[str]:
    app, work = _work(task, ", page_limit=20" if PAGES in told else "")
    steps = [LOGIN.format(app=app), work]
    if FINISH in told:
        steps.append("apis.supervisor.complete_task(answer=answer)")
    return steps


def said(request: ScriptedRequest, fields: dict) -> str:
    return as_chat(fields) if "[[ ## completed ## ]]" in request.text else as_json(fields)


def _act(request: ScriptedRequest) -> str:
    steps = steps_for(request.last, request.system)
    done = request.last.count("[[ ## observation_") or request.last.count("] printed:")
    if "next_tool_name" in request.system:
        name, arguments = ("execute", {"code": steps[done]}) if done < len(steps) else ("finish", {})
        thought = {"next_thought": f"step {done + 1}", "next_tool_name": name}
        return said(request, {**thought, "next_tool_args": json.dumps(arguments)})
    if "`code`" in request.system:
        finished = str(done == len(steps) - 1)
        return said(request, {"code": steps[done], "finished": finished, "outcome": "I did what I could."})
    return said(request, {"reasoning": "It is all there.", "outcome": "I did what I could."})


def _propose(request: ScriptedRequest) -> str:
    # Records come as JSON, with their line ends escaped.
    text = request.text.replace("\\n", "\n")
    # Lessons of the level below are handed on.
    lessons = [rule for rule in (FINISH, PAGES) if rule in text]
    if re.search(r"Not met:\s*- assert the task was marked complete", text):
        lessons.append(FINISH)
    # A wrong answer, and not merely none.
    if re.search(r"- assert answers match\.\s+'\d", text):
        lessons.append(PAGES)
    return said(request, {"lessons": list(dict.fromkeys(lessons))})


def agent_lm() -> ScriptedLM:
    return ScriptedLM(_act, model="scripted/agent")


def proposer_lm() -> ScriptedLM:
    return ScriptedLM(_propose, model="scripted/proposer")
