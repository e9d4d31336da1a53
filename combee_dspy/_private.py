"""What is needed of the private parts of DSPy, ``dspy.GEPA`` and gepa, in one module.

What it relies on is pinned by ``tests/search/test_private_contract.py``: when a
release moves one of these parts, that test names it.
"""

from __future__ import annotations

import functools
import inspect
from collections import UserDict
from collections.abc import Callable, Mapping
from typing import Any

import dspy
from dspy._vendor.lm15.transports import StdlibAsyncTransport, StdlibTransport
from dspy.adapters.types.base_type import Type
from dspy.clients import execution, model_metadata
from dspy.clients.engines.lm15_engine import AsyncLM15Engine, LM15Engine
from dspy.teleprompt.bootstrap_trace import FailedPrediction
from dspy.teleprompt.gepa.gepa import AUTO_RUN_SETTINGS, GEPA, DspyGEPAResult
from dspy.teleprompt.gepa.gepa_flex_utils import enumerate_flex_submodules
from dspy.teleprompt.gepa.gepa_utils import DspyAdapter, format_history_for_reflection
from dspy.teleprompt.gepa.instruction_proposal import InstructionProposer
from gepa import GEPAResult
from gepa.core.state import GEPAState, ValsetEvaluation

from combee_dspy.records import Metric

__all__ = [
    "AUTO_CANDIDATES",
    "GEPA_MINIBATCH",
    "DspyAdapter",
    "Engines",
    "FailedPrediction",
    "GEPAState",
    "InstructionProposer",
    "StdlibAsyncTransport",
    "StdlibTransport",
    "Type",
    "ValsetEvaluation",
    "aexecute",
    "auto_budget",
    "cached",
    "detailed_results",
    "execute",
    "finalize",
    "flex_sources",
    "history_text",
    "list_prices",
    "make_adapter",
    "new_state",
    "prepare",
    "store",
]

AUTO_CANDIDATES: Mapping[str, int] = {
    name: setting["n"] for name, setting in AUTO_RUN_SETTINGS.items()
}
"""``auto=`` settings of ``dspy.GEPA``: name to number of candidates."""

GEPA_MINIBATCH: int = inspect.signature(GEPA).parameters["reflection_minibatch_size"].default
"""The size of minibatches of ``dspy.GEPA``, which proposers of its kind were written for."""

history_text: Callable[[Any], str] = format_history_for_reflection
"""A history as the text that custom proposers get."""

# The parts of a call of ``dspy.LM``: its answer from DSPy's cache, from the service, into the cache
# and the history.
prepare, execute, aexecute, finalize = (
    execution.prepare,
    execution.execute,
    execution.aexecute,
    execution.finalize,
)
cached, store = execution._cached, execution._store


class Engines(UserDict[Any, Any]):
    """The native clients that an LM and its copies share, with transports of other classes.

    DSPy holds the LM's lock while it reads or writes.

    Args:
        engines: The LM's own store.
        threads: The class that DSPy's transport for threads becomes.
        loops: The class that its transport for event loops becomes.
    """

    def __init__(
        self,
        engines: dict[Any, Any],
        threads: type[StdlibTransport],
        loops: type[StdlibAsyncTransport],
    ) -> None:
        self.data = engines
        self._classes: dict[type, type] = {StdlibTransport: threads, StdlibAsyncTransport: loops}

    def __getitem__(self, key: Any) -> Any:
        return self._changed(self.data[key])

    def __setitem__(self, key: Any, engine: Any) -> None:
        self.data[key] = self._changed(engine)

    def _changed(self, engine: Any) -> Any:
        if isinstance(engine, (LM15Engine, AsyncLM15Engine)):
            transport = engine.router._shared_transport()
            # In place: the user's own LM has these connections, too.
            transport.__class__ = self._classes.get(type(transport), type(transport))
        return engine


@functools.cache
def list_prices() -> Mapping[str, Mapping[str, object]]:
    """Return what the installed DSPy says of models, by name: the table that came with it.

    DSPy itself fetches a newer one over the network where it can. A run and its replay need the
    same one.
    """
    table: Mapping[str, Mapping[str, object]] = model_metadata._snapshot()
    return table


def auto_budget(components: int, candidates: int, validation_size: int) -> int:
    """Return the rollouts that ``dspy.GEPA(auto=…)`` would buy."""
    # The method reads nothing of its instance, so none is made.
    return int(GEPA.auto_budget(None, components, candidates, validation_size))


def flex_sources(student: dspy.Module) -> dict[str, str]:
    """Return the source of each ``dspy.Flex`` submodule by its path."""
    return {path: flex.module_src for path, flex in enumerate_flex_submodules(student).items()}


def make_adapter(student: dspy.Module, metric: Metric, **settings: object) -> DspyAdapter:
    """Return DSPy's gepa adapter: it builds programs with ``dspy.Flex`` parts and asks custom
    proposers.
    """
    return DspyAdapter(student_module=student, metric_fn=metric, feedback_map={}, **settings)


def new_state(
    texts: Mapping[str, str], evaluation: ValsetEvaluation, visible: list[str], **settings: object
) -> GEPAState:
    """Return gepa's state after the validation of the seed, whose texts it holds.

    ``visible`` are the components that may be selected: gepa reads them off the seed, and offers no
    way to keep one back.
    """
    state = GEPAState(dict(texts), evaluation, **settings)
    state.list_of_named_predictors[:] = visible
    state.num_full_ds_evals = 1
    state.total_num_evals = len(evaluation.scores_by_val_id)
    return state


def detailed_results(
    state: GEPAState, adapter: DspyAdapter, log_dir: str | None, seed: int
) -> DspyGEPAResult:
    """Return what ``dspy.GEPA(track_stats=True)`` attaches to the program."""
    return DspyGEPAResult.from_gepa_result(
        GEPAResult.from_state(state, run_dir=log_dir, seed=seed), adapter
    )
