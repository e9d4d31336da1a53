"""A scripted model that obeys the rules in its prompt and learns those in the feedback."""

from __future__ import annotations

import re

from combee_dspy.testing import ScriptedRequest, as_chat, as_json

RULE = r"A message about an? \w+ [^.]*\."


def obey(request: ScriptedRequest) -> str:
    """Obey the rules in the prompt; learn those in the feedback."""
    reply = as_chat if "[[ ## completed ## ]]" in request.text else as_json
    learned = "\n".join(dict.fromkeys(re.findall(RULE, request.text)))
    if "[[ ## message ## ]]" not in request.last:
        if "lessons" in request.text:
            return reply({"lessons": learned.splitlines()})
        return f"```\n{learned}\n```"
    question = request.last.split("[[ ## message ## ]]", 1)[1]
    for topic, rest in re.findall(r"A message about an? (\w+) (.*)", request.system):
        if topic in question:
            order = re.search(r"\d{4,}", question)
            assert order is not None
            mark = re.match(r"gets the letter (\w)", rest)
            said = re.match(r"(?:gets the code|goes to the desk) (\w+)\.", rest)
            return as_chat({"answer": mark[1] + order[0] if mark else said[1] if said else "?"})
    return as_chat({"answer": "I do not know"})
