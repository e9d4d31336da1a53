"""A playbook that serves or learns while its service hangs: run as a program of its own, which is
then interrupted.
"""

from __future__ import annotations

import sys
import threading

import dspy

from combee_dspy.artifacts import OnlinePlaybook
from tests.worlds import World, examples, metric, proposer_answer, task_answer


def main(way):
    """Serve and learn; once the service hangs say so, and after an interrupt say what is left."""

    def hang(request):
        print("hanging", flush=True)  # noqa: T201 - the test waits for it
        threading.Event().wait()
        return ""

    world = World.made(
        hang if way == "predict" else task_answer, hang if way == "learn" else proposer_answer
    )
    # One thread, which hangs: Python aborts at its end where another is inside of pydantic.
    online = OnlinePlaybook(
        dspy.Predict("question -> answer"), metric, reflection_lm=world.proposer_lm, num_threads=1
    )
    with dspy.context(lm=world.task_lm, adapter=dspy.ChatAdapter()):
        try:
            online.predict(examples(6))
            online.learn()
        except KeyboardInterrupt:
            print(f"interrupted with {len(online.rollouts)} answers", flush=True)  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
