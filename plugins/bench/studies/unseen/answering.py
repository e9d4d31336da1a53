"""The scripted task model: follows lines of its prompt, though not all and not always."""

from __future__ import annotations

import re

from studies.unseen.service import output_names, write_fields
from studies.unseen.world import Task, draw, words_in

__all__ = ["Answerer"]

_OWN = ("reasoning", "next_thought", "next_tool_args")


class Answerer:
    """Answers a task's rows by what the prompt teaches."""

    def __init__(self, task: Task) -> None:
        self.task = task

    def __call__(self, system: str, user: str, times: int) -> str:
        """Answer in the adapter's form."""
        instruction = system.split("your objective is:")[-1].strip()
        inputs = user.split("Respond with")[0]
        fields: dict[str, object] = {}
        for name in output_names(system):
            if name in _OWN:
                fields.setdefault(name, "I follow the instruction.")
            elif name == "next_tool_name":
                fields[name] = self._pick_tool(instruction, inputs)
                fields["next_tool_args"] = (
                    {} if fields[name] == "finish" else {"query": _first_line(inputs)}
                )
            elif name == "answer" and "RESULT" in inputs:
                fields[name] = inputs.split("RESULT")[1].split()[0].strip("\"'],}")
            else:
                fields[name] = self.answer(instruction, inputs, name)
        names = output_names(system)
        return write_fields(system, {name: fields[name] for name in names})

    def _pick_tool(self, instruction: str, inputs: str) -> str:
        if "observation_0" in inputs:
            return "finish"
        return self.answer(instruction, _first_line(inputs), "next_tool_name")

    def answer(self, instruction: str, text: str, field: str) -> str:
        """Return the value of a field for a text under an instruction."""
        task = self.task
        place = (task.name, field, text, instruction)
        right = task.right(text, field)
        obeyed = self._obeyed(instruction, text, field)
        if task.joins:
            lucky = [value for value in right if draw("lucky", *place, value) < task.guess]
            return ", ".join(sorted({value for value, _ in obeyed} | set(lucky))) or "nothing"
        if obeyed:
            narrow = max(cues for _, cues in obeyed)
            widest = [value for value, cues in obeyed if cues == narrow or draw("w", *place) < 0.1]
            return widest[-1]
        # What is guessed hangs on the row alone, as what a model knows does.
        if right and draw("knows", task.name, text, field) < task.guess:
            return right[0]
        others = [value for value in task.values(field) if value not in right] or ["unknown"]
        return others[int(draw("other", task.name, text) * len(others))]

    def _obeyed(self, instruction: str, text: str, field: str) -> list[tuple[str, int]]:
        """Return value and number of cues of each line that applies and is attended to."""
        task = self.task
        lines = task.statements(instruction)
        applied: list[tuple[int, str, int, int]] = []
        values, cues = task.values(field), (*task.cues(), *task.fillers)
        present = set(words_in(text, cues))
        for number, line in enumerate(lines):
            asked = words_in(line, values)
            if not asked:
                continue
            # In `hops` an answer of the first step is what the second one's lines are about.
            named = [cue for cue in words_in(line, cues) if cue not in asked]
            if not set(named) <= present:
                continue
            if named or re.search(r"\b(always|every)\b|常に", line, re.IGNORECASE):
                applied.append((number, asked[0], len(named), len(lines)))
        if task.lines:
            half = task.lines // 2
            taught = [n for n, line in enumerate(lines) if words_in(line, values)]
            read = {*taught[:half], *taught[-half:]}
            applied = [item for item in applied if item[0] in read]
        chance = task.obeys
        if task.fades:
            chance /= 1 + max(0, len(instruction.split()) - 60) / task.fades
        return [
            (value, named)
            for number, value, named, _ in applied
            if draw("obeys", task.name, field, text, lines[number], len(instruction)) < chance
        ]


def _first_line(inputs: str) -> str:
    match = re.search(r"\[\[ ## question ## \]\]\s*(.*?)\s*(?=\[\[ ##|$)", inputs, re.DOTALL)
    return match.group(1) if match else inputs
