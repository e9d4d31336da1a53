"""``combee run``: one run, or several, from a YAML file."""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from combee_dspy.cli._group import say
from combee_dspy.cli._tables import show_facts
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.files import make_folder, write_plain

if TYPE_CHECKING:
    from combee_dspy.cli._config import LMConfig
    from combee_dspy.cli._plan import Plan, TaskPlan
    from combee_dspy.many import TaskResult
    from combee_dspy.settings import Settings

# What a dry run shows of the settings.
_SHOWN = (
    "artifact",
    "aggregator",
    "operators",
    "controller",
    "executor",
    "search",
    "validation",
    "guards",
    "diversity",
    "budget",
    "costs",
    "trackers",
)


def run(
    config: Annotated[
        Path | None, typer.Argument(metavar="CONFIG.yaml", show_default=False)
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Load and check everything, buy nothing.")
    ] = False,
    require_diagnosis: Annotated[
        bool,
        typer.Option(
            "--require-diagnosis", help="Refuse to run before combee diagnose has said go."
        ),
    ] = False,
    schema: Annotated[
        bool, typer.Option("--schema", help="Print what the file may hold, as a JSON schema.")
    ] = False,
) -> None:
    """Learn a program's prompts as a YAML file says.

    \b
        data: {benchmark: {name: formula-mini, params: {task: route}}}
        lms: {task: embedded}              # nothing else to install or pay
        budget: {seconds: 240}
        output: learned.json

    Your own program, files and models:

    \b
        program: my_package.qa:Program     # an object, a class, or a function
        metric: my_package.qa:metric       # (gold, pred, trace, pred_name, pred_trace)
        data:                              # .jsonl, .json or .csv; heldout is read once, at the end
          {train: train.jsonl, validation: validation.jsonl, heldout: heldout.jsonl,
           inputs: [question]}
        lms:
          task: {model: openai/gpt-5-nano, temperature: 1.0, max_tokens: 16000}
          proposer: {model: openai/my-model, api_base: "http://gpu:8000/v1", api_key_env: MY_KEY}
        strategies:
          aggregator: {name: parallel-scan, params: {copies: 3}}
          operators: [insert, few-shot-swap]
          stopping: [{name: patience, params: {updates: 5}}]   # beside the budget
        guards: {max_tokens: 1500}
        budget: {rollouts: 2000, dollars: 5}
        costs: {prices: {openai/my-model: {prompt: 0.1, completion: 0.4}}}
        tracker: [progress, mlflow]
        log_dir: runs/today                # run again to go on

    To learn from logs before anything runs (sources: combee learn --help). Then data may hold
    only validation and held-out rows, or be left out:

    \b
        traces: {name: mlflow, params: {experiment: questions},
                 selection: {tokens: 200000}, heldout_days: 7}

    Several tasks over one service, each with a search, a budget and a held-out study of its own:

    \b
        tasks:
          shares: {data: {train: a.jsonl, heldout: b.jsonl, inputs: [question]}, seed: 1}
          bonds: {data: {train: c.jsonl, heldout: d.jsonl, inputs: [question]}}
        at_once: 4
        output: learned/{name}.json        # further keys as above, for all tasks

    Every argument of combee_dspy.Combee is a key of the same name. Never write a
    service's key into the file: name its environment variable in api_key_env.
    Paths are relative to the file. Modules are imported from the working directory,
    and from the file's folder if that is inside it.
    """  # noqa: D301 - the backspace keeps lines apart on the help page
    from combee_dspy.cli import _reading

    if schema:
        typer.echo(json.dumps(_reading.schema(), indent=2))
        return
    if config is None:
        raise ArgumentValueError(
            "CONFIG.yaml", None, "is missing", "Name a file; see combee run --help."
        )
    plan = planned(config, require_diagnosis=require_diagnosis)
    if dry_run:
        _show_plan(plan)
        return
    results = compiled(plan)
    for task, result in zip(plan.tasks, results, strict=True):
        _tell(plan, task, result)
    failed = [(result.name, result.error) for result in results if result.error is not None]
    if failed and not plan.config.tasks:
        raise failed[0][1]
    if failed:
        raise typer.Exit(max(say(error, of=f"{name}: ") for name, error in failed))


def planned(config: Path, *, require_diagnosis: bool = False) -> Plan:
    """Load and check everything that a file names; nothing is bought.

    Args:
        config: The file.
        require_diagnosis: As in :class:`~combee_dspy.Search`, whatever the file says.

    Raises:
        ArgumentError: Something in it cannot be used.
        DataSourceError: Its data cannot be read.
    """
    from combee_dspy.cli import _plan, _reading

    data = _reading.read_mapping(config)
    if require_diagnosis:
        data["search"] = {**_reading.section(data, "search"), "require_diagnosis": True}
    return _plan.plan_run(data, config.resolve().parent)


def compiled(plan: Plan) -> list[TaskResult]:
    """Compile every task of a plan."""
    import dspy

    from combee_dspy import compile_many
    from combee_dspy.tracking import Progress, default_trackers

    with plan.lms() as lm_of:
        combee = plan.combee(lm_of(plan.proposer))
        # The command shows the result itself, once.
        trackers = combee.settings.trackers
        quiet = tuple(
            replace(tracker, result=False) if isinstance(tracker, Progress) else tracker
            for tracker in (default_trackers() if trackers is None else trackers)
        )
        combee.settings = replace(combee.settings, trackers=quiet)
        settings = [{"lm": lm_of(task.lm), **task.settings()} for task in plan.tasks]
        tasks = [
            replace(task.task, context=own) for task, own in zip(plan.tasks, settings, strict=True)
        ]
        with dspy.context(**settings[0]):
            return compile_many(tasks, combee=combee, at_once=plan.config.at_once)


def _tell(plan: Plan, planned: TaskPlan, result: TaskResult) -> None:
    """Save and show what a task has come to."""
    if result.report is None:
        return
    # A loss on held-out rows comes before anything else that there is to say.
    facts: dict[str, Any] = {"task": result.name} if plan.config.tasks else {}
    facts |= result.report.facts()
    page = facts.pop("report", "")
    if "simulated" in (planned.lm.model, plan.proposer.model):
        facts["note"] = "simulated service: these figures measure no language model"
    if planned.output is not None:
        _save(result.program, planned.output)
        facts["program"] = planned.output
    show_facts(facts | ({"report": page} if page else {}))


def _show_plan(plan: Plan) -> None:
    from dspy.utils import DummyLM

    settings = plan.combee(DummyLM([])).settings
    for planned in plan.tasks:
        facts = _task_facts(plan, planned, settings)
        show_facts(({"task": planned.task.name} if plan.config.tasks else {}) | facts)
    show_facts({name: getattr(settings, name) for name in _SHOWN})
    typer.echo("Everything could be loaded. Nothing was bought: leave out --dry-run to run it.")


def _task_facts(plan: Plan, planned: TaskPlan, settings: Settings) -> dict[str, object]:
    """Return what a task would run, and what that will cost."""
    from combee_dspy.artifacts import Playbook
    from combee_dspy.cli._estimate import Model, estimate
    from combee_dspy.evaluation import evaluator_lms
    from combee_dspy.search import make_compilation

    task = planned.task
    compilation = make_compilation(settings, task.student, task.data)
    splits = compilation.splits
    facts: dict[str, object] = {}
    for loaded, _ in planned.benchmarks:
        facts["data"] = f"{loaded.name} from {loaded.source}; licence {loaded.licence}"
        facts |= {f"note {number}": note for number, note in enumerate(loaded.notes, start=1)}
    rows = {
        name: [row.example for row in getattr(splits, name)]
        for name in ("train", "validation", "heldout")
    }
    facts["rows"] = ", ".join(f"{name} {len(examples)}" for name, examples in rows.items())
    if splits.traces is not None:
        facts["traces"] = splits.traces
    facts["predictors"] = ", ".join(name for name, _ in task.student.named_predictors())
    facts["models"] = f"task {planned.lm.model}, proposer {plan.proposer.model}"
    models = {
        role: Model(lm.model, _context(lm))
        for role, lm in (("task", planned.lm), ("proposer", plan.proposer))
    }
    if judges := evaluator_lms(task.metric):
        models["evaluator"] = Model(str(judges[0].model))
    call_tokens: Any = settings.aggregator.params().get("max_call_tokens")
    facts |= estimate(
        task.student,
        rows,
        compilation.limits,
        models,
        settings.costs,
        call_tokens,
        each_read=isinstance(settings.artifact, Playbook),
    )
    return facts | ({"output": planned.output} if planned.output else {})


def _context(lm: LMConfig) -> int | None:
    from combee_dspy.lms import EmbeddedOptions

    return EmbeddedOptions.context if lm.model == "embedded" and lm.context is None else lm.context


def _save(program: Any, output: Path) -> None:
    make_folder(output.parent)
    with tempfile.TemporaryDirectory(prefix="combee-") as folder:
        file = Path(folder, "program.json")
        program.save(str(file), save_program=False)
        write_plain(output, file.read_bytes())
