"""A learned program behind FastAPI, with a canary: publish, serve on loopback, promote, roll back.

Needs ``combee-strategist[mlflow]``, which brings FastAPI and uvicorn. The LM is
simulated.
"""

from __future__ import annotations

import tempfile
import threading
import time
import urllib.request
from pathlib import Path

import dspy
import uvicorn
from fastapi import FastAPI, Response

from combee_dspy import Combee, Validation
from combee_dspy.testing import ScriptedLM, as_chat
from combee_strategist.canary import (
    CanaryPlan,
    CanaryProgram,
    Registry,
    Serving,
    promote,
    publish,
    rollback,
)


def simulated(request):
    if "lessons" in request.system:
        return as_chat({"lessons": '["Name the unit."]', "reasoning": "The unit was missing."})
    return as_chat({"answer": "5 m" if "Name the unit." in request.text else "5"})


def metric(gold, pred, trace=None, pred_name=None, pred_trace=None):
    return dspy.Prediction(score=float(pred.answer.endswith(" m")), feedback="Name the unit.")


folder = Path(tempfile.mkdtemp())
store = f"sqlite:///{folder}/registry.db"
lm = ScriptedLM(simulated, cache=False)
dspy.configure(lm=lm, adapter=dspy.ChatAdapter())
program = dspy.Predict("question -> answer")
rows = [
    dspy.Example(question=f"How long is number {n}?").with_inputs("question") for n in range(30)
]
Combee(
    metric,
    reflection_lm=lm,
    max_metric_calls=60,
    tracker=(),
    validation=Validation(probe=False),
    log_dir=folder / "run",
).compile(program, trainset=rows[:8], valset=rows[8:16], heldout=rows[16:])

# Shadowing everything for no time at all suits an example and nothing else.
terms = CanaryPlan(epsilon=0.1, pairs=50, hours=0)
publish(folder / "run", "qa", terms, uri=store, why="an example has no day to wait")
qa = CanaryProgram(
    "qa",
    program,
    judge=metric,
    uri=store,
    log_dir=folder / "serving",
    serving=Serving(shadow=1.0, ttl=0.5),
)
app = FastAPI()


@app.get("/answer")
async def answer(question: str, request_id: str) -> Response:
    found = await qa.acall(question=question, request_id=request_id)
    return Response(found.answer)


server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="warning"))
threading.Thread(target=server.run, daemon=True).start()
while not server.started:
    time.sleep(0.05)
port = server.servers[0].sockets[0].getsockname()[1]


def ask(number):
    address = f"http://127.0.0.1:{port}/answer?question=How+long&request_id=r{number}"
    return urllib.request.urlopen(address, timeout=30).read().decode()


print("simulated answers of the incumbent:", {ask(number) for number in range(60)})
while qa.counts().get("scored", 0) < 60:
    time.sleep(0.05)
time.sleep(0.5)
registry = Registry("qa", store)
found = promote(registry, folder / "serving", why="an example")
print(
    f"promoted: {found.pairs} pairs, difference {found.difference:+.2f}, at least {found.low:+.2f}"
)
while ask("after") != "5 m":
    time.sleep(0.05)
rollback(registry, why="an example")
while ask("again") != "5":
    time.sleep(0.05)
print(
    "rolled back:", [f"{line['action']} {line['from']} → {line['to']}" for line in registry.audit()]
)
server.should_exit = True
qa.close()
