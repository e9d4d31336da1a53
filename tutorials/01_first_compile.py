# %% [markdown]
# # A first compile
#
# A program, a metric, three sets of examples, and `Combee(...).compile(...)`.
# Nothing here is paid: a simulated service on this machine (`pip install ./plugins/simulator`)
# answers in place of a language model, so the scores say that the machinery works
# and nothing more.

# %%
import logging
import shutil
from pathlib import Path

import dspy

from combee_dspy import Budget, Combee, candidates, load_benchmark
from combee_dspy.tracking import write_report
from combee_simulator import SimulatedConfig, SimulatedService, benchmark_task

logging.getLogger("dspy").setLevel(logging.WARNING)

# %% [markdown]
# ## Examples
#
# Finance questions whose answer is a number. Three disjoint sets: one to learn
# from, one to choose between candidates, and one that is read once, at the end.

# %%
data = load_benchmark(
    "formula-mini", task="compute", formulas=8, train=48, validation=24, heldout=48
)
train, validation, heldout = (list(split.examples) for split in data.splits)
print(f"train {len(train)}, validation {len(validation)}, held-out {len(heldout)}")
print("question:", train[0].question)
print("answer:  ", train[0].answer)


# %% [markdown]
# ## A program and a metric
#
# The program is any `dspy.Module`. The metric is the one that `dspy.GEPA` takes:
# five arguments, and a score with feedback. Feedback is what the proposer learns
# from, so say what was wrong, not only that it was.


# %%
class Analyst(dspy.Module):
    def __init__(self):
        super().__init__()
        self.answer = dspy.ChainOfThought("question -> answer")

    def forward(self, question):
        return self.answer(question=question)


def metric(gold, pred, trace=None, pred_name=None, pred_trace=None):
    try:
        right = abs(float(pred.answer) - float(gold.answer)) < 0.01
    except (TypeError, ValueError):
        return dspy.Prediction(score=0.0, feedback="The answer must be a plain number.")
    if right:
        return dspy.Prediction(score=1.0, feedback="Correct.")
    return dspy.Prediction(
        score=0.0, feedback=f"Wrong: this asks for the {gold.formula}, which is {gold.answer}."
    )


# %% [markdown]
# ## The models
#
# The simulated model answers a question rightly once the prompt teaches its
# formula, by an instruction or by a worked example. With real models, delete the
# service and write `dspy.LM("openai/...")` twice: a cheap model for the task and
# a strong one for `reflection_lm`.

# %%
service = SimulatedService(SimulatedConfig(time_scale=0.0), benchmark_task(data)).start()
lm = service.lm()

# %% [markdown]
# ## Compile
#
# One limit is enough to stop a run; `Budget` takes several. How many examples a
# minibatch holds is planned unless `reflection_minibatch_size` says it. All that is
# bought is written to the journal in `log_dir` first: compile again with it, after a
# crash too, and the run goes on where it ended.

# %%
folder = Path("combee_runs")
shutil.rmtree(
    folder / "first_compile", ignore_errors=True
)  # each time this page runs it is another study
optimizer = Combee(
    metric,
    reflection_lm=lm,
    reflection_minibatch_size=16,
    budget=Budget(rollouts=300),
    num_threads=16,
    log_dir=folder / "first_compile",
    tracker=(),  # by default a terminal shows how the run is getting on
)
with dspy.context(lm=lm):
    better = optimizer.compile(Analyst(), trainset=train, valset=validation, heldout=heldout)
service.stop()

# %% [markdown]
# ## What the run has to say
#
# `combee_report` holds why it stopped, what it cost, and the held-out figure with
# its interval. Quote that one, never the validation score: the program was chosen
# on it. `supports_claims` is false when something in the set-up spoils the figure.

# %%
report = better.combee_report
print(report.reason)
print("simulated service, no language model")
print(f"validation: {report.seed_score:.2f} -> {report.best_score:.2f}")
found = report.heldout
print(f"held-out:   {found.before:.2f} -> {found.after:.2f}", end=" ")
print(
    f"({found.difference:+.2f}, 95 % interval {found.low:+.2f} to {found.high:+.2f}, n = {found.n})"
)
print(f"cost: {report.rollouts} rollouts, {report.updates} updates")
for role, spent in report.costs.by_role.items():
    print(f"  {role}: {spent.calls} calls, {spent.tokens} tokens")
print("fit for claims, were it not simulated:", report.supports_claims)
print(better.answer.predict.signature.instructions)

# %% [markdown]
# ## The journal
#
# One SQLite file, which may be read while the run goes on: `combee rollouts`,
# `combee candidates` and `combee report` do. `load_candidate` returns the program with
# the texts of any candidate, accepted or not. The report is one page, to open in a browser.

# %%
for one in candidates(folder / "first_compile"):
    print(one.id, one.operator, "not validated" if one.score is None else f"{one.score:.2f}")
print("look at", write_report(folder / "first_compile", folder / "report.html"))

# %% [markdown]
# ## Save and load
#
# The state is JSON: instructions and demonstrations, no code.

# %%
file = folder / "learned.json"
better.save(str(file))
again = Analyst()
again.load(str(file))
print("saved", file.stat().st_size, "bytes to", file)
print("loaded the same program:", again.dump_state() == better.dump_state())
