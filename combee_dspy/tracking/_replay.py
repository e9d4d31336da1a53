"""Completing a run's record later, from its journal alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from combee_dspy.exceptions import ArgumentValueError, ServiceError
from combee_dspy.tracking._journal import find_journal
from combee_dspy.tracking._mlflow import target_of
from combee_dspy.tracking._shipper import Shipper, sole_shipper
from combee_dspy.tracking._store import Place, connect, load_place, save_place, taken_up

__all__ = ["Replayed", "replay"]


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a replay did.

    Attributes:
        uri: The store.
        run_id: The MLflow run.
        rollouts: Rollouts that are recorded there now.
        writes: Writes that were still to do.
        left_out: Writes that MLflow refused for good; each is in the log.
    """

    uri: str
    run_id: str
    rollouts: int
    writes: int
    left_out: int


def replay(folder: Path | str, tracking_uri: str | None = None, experiment: str | None = None) -> Replayed:
    """Tell MLflow what a journal says and it has not acknowledged. Doing it twice changes nothing.

    The run must be over: a journal that is still written to would be taken for
    that of a killed process.

    Args:
        folder: A journal's folder, or a ``log_dir`` that holds one.
        tracking_uri: The store; by default the one that the run was recorded in. A store
            that does not have the run gets a new one with all of it.
        experiment: The experiment of a run that has to be made; by default that of the run.

    Raises:
        ArgumentValueError: There is no journal, another process ships it, or no store was ever named.
        ServiceError: MLflow stopped answering; what it took is kept, and a further replay completes it.
    """
    journal = find_journal(Path(folder))
    known = load_place(journal) or {}
    options: dict[str, Any] = dict(known.get("options") or {})
    with sole_shipper(journal):
        place = _place(known, tracking_uri, experiment or str(options.get("experiment", "combee_dspy")))
        options["experiment"] = experiment or options.get("experiment", "combee_dspy")
        save_place(journal, place, options)
        shipper = Shipper(journal, place, target_of(place, options), str(options["experiment"]))
        if not shipper.finish():
            raise ServiceError(
                f"MLflow at {place.uri} stopped answering after {shipper.moved} writes. What it took is kept: "
                "run the same command again once it answers."
            )
    return Replayed(place.uri, place.run_id, shipper.rollouts, shipper.moved, shipper.left_out)


def _place(known: Mapping[str, Any], tracking_uri: str | None, experiment: str) -> Place:
    uri = tracking_uri or known.get("uri")
    if uri is None:
        remedy = "Give the store with --tracking-uri, for example sqlite:///mlflow.db."
        raise ArgumentValueError("tracking_uri", None, "is missing: this run was not recorded in MLflow", remedy)
    if "[redacted]" in uri:
        remedy = "Give it with --tracking-uri; user and password are kept in no file."
        raise ArgumentValueError("tracking_uri", uri, "lacks user and password", remedy)
    run_id = known.get("run_id")
    found = connect(experiment, uri, None, known=None if run_id is None else str(run_id), join=False)
    return taken_up(found, known)
