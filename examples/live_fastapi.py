"""A service that learns while it serves, behind FastAPI, to the third promotion.

Users ask over loopback, say now and then what they wanted, and change their minds twice. Needs
``combee-strategist[mlflow]``, which brings FastAPI and uvicorn. The LM is simulated,
and ten minutes pass with each request.
"""

from __future__ import annotations

import json
import re
import tempfile
import threading
import time
import urllib.parse
import urllib.request
from pathlib import Path

import dspy
import uvicorn
from fastapi import FastAPI

from combee_dspy.testing import ScriptedLM, as_chat
from combee_strategist.canary import CanaryPlan, Serving
from combee_strategist.live import Learning, Live

WISHES = ("Name the unit.", "Give one decimal place.", "Say it in feet, not in metres.")


def reply(question, prompt):
    metres = int(re.search(r"(\d+) metres", question)[1])
    unit, decimal, feet = (wish in prompt for wish in WISHES)
    length = metres * 3.281 if feet else metres
    return f"{length:.{int(decimal)}f}" + (" ft" if feet else " m") * unit


def model(request):
    if "examples_with_feedback" in request.text:
        return as_chat({"lessons": [wish for wish in WISHES if wish in request.last]})
    if "contradictory" in request.text:
        return as_chat({"same": [], "contradictory": [], "narrower": [], "empty": []})
    return as_chat({"answer": reply(request.last, request.system)})


def metric(gold, pred, trace=None, pred_name=None, pred_trace=None):
    right = pred.answer == gold.answer
    return dspy.Prediction(score=float(right), feedback="" if right else f"Not {pred.answer}.")


folder, began, number = Path(tempfile.mkdtemp()), time.time(), 0
lm = ScriptedLM(model, cache=False)
dspy.configure(lm=lm, adapter=dspy.ChatAdapter())
live = Live(
    "ropes",
    dspy.Predict("question -> answer"),
    metric=metric,
    reflection_lm=lm,
    learning=Learning(least=10),
    plan=CanaryPlan(epsilon=0.1, pairs=20, hours=6),
    serving=Serving(shadow=1.0, ttl=0.2),
    log_dir=folder,
    uri=f"sqlite:///{folder / 'mlflow.db'}",
    clock=lambda: began + 600 * number,
)
ropes = live.serve()
app = FastAPI()


@app.get("/answer")
async def answer(question: str, request_id: str) -> str:
    return (await ropes.acall(question=question, request_id=request_id)).answer


@app.post("/feedback/{request_id}")
def feedback(request_id: str, right: str, comment: str, trusted: bool = False) -> bool:
    return ropes.feedback(request_id, answer=right, comment=comment, trusted=trusted)


server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="warning"))
threading.Thread(target=server.run, daemon=True).start()
while not server.started:
    time.sleep(0.05)
port = server.servers[0].sockets[0].getsockname()[1]


def call(path, post=False, **query):
    address = f"http://127.0.0.1:{port}{path}?{urllib.parse.urlencode(query)}"
    request = urllib.request.Request(address, method="POST" if post else "GET")
    return json.load(urllib.request.urlopen(request, timeout=30))  # noqa: S310 - our own server


stop = threading.Event()
learner = threading.Thread(target=live.run, args=(stop, 0.2))
learner.start()


def promotions():
    return [decision for decision in live.decisions() if decision.action == "promote"]


# What the users want changes when they have got what they wanted before. They go after ten weeks.
for number in range(1, 10_001):
    if number % 25 == 1:
        wishes = WISHES[: len(promotions()) + 1]
        if len(promotions()) == len(WISHES):
            break
    question, name = f"The rope measures {number} metres. How long is it?", f"r{number}"
    got, right = call("/answer", question=question, request_id=name), reply(question, str(wishes))
    if number % 5 == 0:
        said = {"right": right, "comment": "" if got == right else wishes[-1]}
        call(f"/feedback/{name}", post=True, trusted=number % 10 == 0, **said)
    if number % 100 == 0:
        print(f"simulated: request {number}, the users want {right!r} and got {got!r}")
stop.set()
learner.join()
for decision in promotions():
    print(f"version {decision.version} promoted: {decision.why}")
server.should_exit = True
ropes.close()
live.close()
