"""A compile whose service hangs after so many answers: run as a program of its own, which is then
interrupted.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

import dspy

from combee_dspy import Search, Task, compile_many
from tests.worlds import World, examples, task_answer

UP = 30


def main(way: str, folder: str) -> None:
    """Compile; once the service hangs say so, and after an interrupt say what the error has."""
    never, answered = threading.Event(), iter(range(UP))

    def reply(request: Any) -> str:
        if next(answered, None) is None:
            print("hanging", flush=True)  # noqa: T201 - the test waits for it
            never.wait()
        return task_answer(request)

    class Program(dspy.Predict):
        async def aforward(self, **inputs: Any) -> Any:
            if next(answered, None) is None:
                print("hanging", flush=True)  # noqa: T201 - as above
                never.wait()  # a program that computes holds up the loop itself
            return self.forward(**inputs)

    world = World.made(task_answer if way == "asyncio" else reply)
    combee = world.combee(
        log_dir=folder,
        reflection_minibatch_size=6,
        executor="asyncio" if way == "asyncio" else "threads",
        tracker="progress",
        search=Search(staleness=0),
    )
    data = {"trainset": examples(24), "valset": examples(6, 100)}
    student = (Program if way == "asyncio" else dspy.Predict)("question -> answer")
    with dspy.context(lm=world.task_lm, adapter=dspy.ChatAdapter()):
        try:
            if way == "many":
                compile_many([Task("one", student, **data)], combee=combee)
            else:
                combee.compile(student, **data)
        except KeyboardInterrupt as error:
            found = getattr(error, "results", None)
            program = found[0].error.program if found else getattr(error, "program", None)
            print(f"interrupted with {type(program).__name__}", flush=True)  # noqa: T201 - as above


if __name__ == "__main__":
    main(*sys.argv[1:])
