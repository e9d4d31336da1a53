# %% [markdown]
# # An agent that learns while it serves
#
# A program goes into production, its users say now and then what they wanted instead,
# and `Live` learns from that, proves what it learned, and ships it. The users change
# their minds twice. Needs `combee-strategist[mlflow]`.
#
# Nothing here is paid, and nobody waits ten days: a scripted function answers in place
# of a language model, and time is a clock that this page sets. So the figures are
# simulated: they show the machinery and no model.

# %%
import logging
import re
import tempfile
from pathlib import Path

import dspy

from combee_dspy.testing import ScriptedLM, as_chat
from combee_strategist.canary import CanaryPlan, Registry, Serving
from combee_strategist.live import Learning, Live

logging.getLogger("mlflow").setLevel(logging.ERROR)

# %% [markdown]
# ## The users
#
# They ask how long a rope is. In the first three days they want the unit, then a
# decimal place as well, and from the seventh day on they want feet.

# %%
WISHES = ("Name the unit.", "Give one decimal place.", "Say it in feet, not in metres.")


def reply(question, prompt):
    metres = int(re.search(r"(\d+) metres", question)[1])
    unit, decimal, feet = (wish in prompt for wish in WISHES)
    length = metres * 3.281 if feet else metres
    return f"{length:.{int(decimal)}f}" + (" ft" if feet else " m") * unit


def wanted(question, day):
    return reply(question, " ".join(WISHES[: 1 + day // 3]))


# %% [markdown]
# ## The model
#
# It answers as its prompt says. Asked to read what went wrong, it writes down what the
# users said. With a real model, write `dspy.LM("openai/...")` in its place.


# %%
def model(request):
    if "examples_with_feedback" in request.text:
        return as_chat({"lessons": [wish for wish in WISHES if wish in request.last]})
    if "contradictory" in request.text:
        return as_chat({"same": [], "contradictory": [], "narrower": [], "empty": []})
    return as_chat({"answer": reply(request.last, request.system)})


def metric(gold, pred, trace=None, pred_name=None, pred_trace=None):
    right = pred.answer == gold.answer
    return dspy.Prediction(score=float(right), feedback="" if right else f"Not {pred.answer}.")


# %% [markdown]
# ## Live
#
# `serve()` puts the program into production as version 1. What Live may spend a day is
# a number of tokens; what a challenger must show on live requests are the terms of its
# canary. All of it is in `log_dir` and in MLflow's registry: stop at any point, start
# again, and it goes on. In production one process learns (`live.run(stop)`) and any
# number of others serve.


# %%
class Clock:
    now = 1_767_600_000.0

    def __call__(self):
        return self.now


folder, clock = Path(tempfile.mkdtemp()), Clock()
lm = ScriptedLM(model, cache=False)
dspy.configure(lm=lm, adapter=dspy.ChatAdapter())
program = dspy.Predict("question -> answer")
live = Live(
    "ropes",
    program,
    metric=metric,
    reflection_lm=lm,
    learning=Learning(least=10, tokens=500_000),
    plan=CanaryPlan(epsilon=0.1, pairs=20, hours=6),
    serving=Serving(shadow=1.0, ttl=3600.0),
    log_dir=folder,
    uri=f"sqlite:///{folder / 'mlflow.db'}",
    clock=clock,
)
ropes = live.serve()

# %% [markdown]
# ## Ten days
#
# Each hour ten questions come. Of one in five somebody says what would have been right,
# an hour later. Half of these are people of the team: `trusted=True`. What they vouch
# for never teaches; it proves what was learned from the others.

# %%
promoted, number, late = [], 0, []
for hour in range(10 * 24):
    day, right = hour // 24, 0
    for request_id, labels in late:
        ropes.feedback(request_id, **labels)
    late = []
    for _ in range(10):
        number, clock.now = number + 1, clock.now + 360
        question = f"The rope measures {number} metres. How long is it?"
        answer = ropes(question=question, request_id=f"r{number}").answer
        right += answer == wanted(question, day)
        if number % 5 == 0:
            comment = WISHES[day // 3] if day < 9 else ""
            labels = {"answer": wanted(question, day), "comment": comment}
            late.append((f"r{number}", {**labels, "trusted": number % 10 == 0}))
    ropes.refresh()
    for decision in live.tick():
        print(f"day {day + 1}, {hour % 24:2}:00  {decision.action}: {decision.why}")
        promoted += [decision.version] if decision.action == "promote" else []
    ropes.refresh()
    if hour % 24 == 23:
        print(f"day {day + 1}: simulated, {right} of the last 10 right")
    if len(promoted) == 3:
        break

# %% [markdown]
# ## What was learned, and who says so
#
# The registry has every version with its held-out receipt; the decisions are the audit;
# the page shows all of it, with the requests that taught each line.

# %%
registry = Registry("ropes", f"sqlite:///{folder / 'mlflow.db'}")
print(registry.version(ropes.versions[0]).texts["self"])
print("promoted:", promoted)
print("look at", live.write_page())

# %% [markdown]
# ## Take a lesson back
#
# A person may remove a lesson. It leaves with the next session and never returns, in
# other words neither.

# %%
live.remove("Give one decimal place.", who="ada", why="an example")
for decision in live.tick():
    print(decision.action, decision.text or decision.why)
ropes.close()
live.close()
