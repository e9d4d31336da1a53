"""Checks a log_dir before gepa reads it, and binds it to the run that made it.

gepa's checkpoint is a pickle, which can run code when it is read. It is read
once here by an unpickler that imports nothing but classes of known packages.
"""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from combee_dspy.engine.candidates import is_hidden, visible
from combee_dspy.exceptions import ArgumentValueError

__all__ = ["check_log_dir", "claim_log_dir", "has_checkpoint", "read_checkpoint"]

_STATE = "gepa_state.bin"
_SIDE = "combee_run.json"
_REMEDY = "Resume a run of your own with the same inputs, or give an empty directory."

_PACKAGES = frozenset({"collections", "datetime", "decimal", "dspy", "gepa", "pydantic", "pydantic_core"})
_BUILTINS = frozenset({"bool", "bytearray", "bytes", "complex", "dict", "float", "frozenset"}) | frozenset(
    {"int", "list", "object", "set", "str", "tuple"}
)


def has_checkpoint(log_dir: str | os.PathLike[str]) -> bool:
    """Return whether a run would be resumed from this directory."""
    return (Path(log_dir) / _STATE).exists()


def check_log_dir(
    log_dir: str | os.PathLike[str] | None,
    identity: Mapping[str, str],
    trusted: frozenset[str] = frozenset(),
    *,
    seed: Mapping[str, str] | None = None,
) -> None:
    """Check that a log_dir can be used by this run. Writes nothing.

    Args:
        log_dir: The directory; it need not exist. ``None`` is fine.
        identity: What must not change across a resume: hashes of the splits, the
            seed candidate and the metric's name.
        trusted: Top-level packages of the user's own classes, which a checkpoint
            with tracked outputs may hold.
        seed: The seed candidate that the checkpoint must have begun with; ``None`` compares none.

    Raises:
        ArgumentValueError: The checkpoint belongs to another run, or to one with
            other operators, or its pickle imports something that gepa's state
            does not hold.
    """
    if log_dir is None:
        return
    folder = Path(log_dir)
    state, side = folder / _STATE, folder / _SIDE
    if state.exists():
        found = _check(state, _PACKAGES | trusted)
        if seed is not None:
            _compare_seeds(folder, found, seed)
        if side.exists():
            _compare(folder, _read(side), identity)


def read_checkpoint(log_dir: Path, trusted: frozenset[str] = frozenset()) -> dict[str, Any]:
    """Return gepa's state as plain data, empty where there is none.

    Args:
        log_dir: The run's directory.
        trusted: As for :func:`check_log_dir`.

    Raises:
        ArgumentValueError: Its pickle imports something that gepa's state does not hold, or is no such state.
    """
    state = log_dir / _STATE
    found = _check(state, _PACKAGES | trusted) if state.exists() else {}
    return found if isinstance(found, dict) else {}


def claim_log_dir(log_dir: str | os.PathLike[str] | None, identity: Mapping[str, str]) -> None:
    """Make a log_dir and note which run it belongs to, in one step that is never half done."""
    if log_dir is None:
        return
    folder = Path(log_dir)
    folder.mkdir(parents=True, exist_ok=True)
    spent = noted_spending(log_dir)
    _write(folder, {**identity, **({"spent": spent} if spent else {})})


def _write(folder: Path, noted: Mapping[str, Any]) -> None:
    partial = folder / (_SIDE + ".tmp")
    partial.write_text(json.dumps(dict(noted), indent=2, sort_keys=True), encoding="utf-8")
    partial.replace(folder / _SIDE)


def note_spending(log_dir: str | os.PathLike[str] | None, spent: Mapping[str, Any]) -> None:
    """Note what a run had spent when it ended, for whoever resumes it."""
    if log_dir is not None:
        _write(Path(log_dir), {**_read(Path(log_dir) / _SIDE), "spent": dict(spent)})


def noted_spending(log_dir: str | os.PathLike[str] | None) -> Mapping[str, Any]:
    """Return what :func:`note_spending` noted; empty where nothing was."""
    side = None if log_dir is None else Path(log_dir) / _SIDE
    found = _read(side).get("spent") if side is not None and side.exists() else None
    return found if isinstance(found, dict) else {}


def _compare_seeds(folder: Path, state: object, seed: Mapping[str, str]) -> None:
    candidates = state.get("program_candidates") if isinstance(state, dict) else None
    first = candidates[0] if isinstance(candidates, list) and candidates else None
    if not isinstance(first, dict):
        raise ArgumentValueError("log_dir", str(folder), "holds no checkpoint of gepa", _REMEDY)
    if first == dict(seed):
        return
    if any(first.get(key) != seed[key] for key in visible(seed)) or len(visible(first)) != len(visible(seed)):
        raise ArgumentValueError("log_dir", str(folder), "holds a run with another seed candidate", _REMEDY)
    held, wanted = ({key for key in keys if is_hidden(key)} for keys in (first, seed))
    if wanted and not held:
        problem = "holds a run that learns no demonstrations, such as one of dspy.GEPA"
        remedy = 'Give operators=["insert"] to go on with it, or an empty directory.'
    elif held and not wanted:
        problem = "holds a run that learns demonstrations too"
        remedy = "Give the operators that it began with to go on with it, or an empty directory."
    else:
        problem, remedy = "holds a run of a program with other demonstrations", _REMEDY
    raise ArgumentValueError("log_dir", str(folder), problem, remedy)


def _compare(folder: Path, found: Mapping[str, object], identity: Mapping[str, str]) -> None:
    changed = [name for name, value in identity.items() if found.get(name) != value]
    if changed:
        problem = f"holds a run with another {', '.join(changed)}"
        raise ArgumentValueError("log_dir", str(folder), problem, _REMEDY)


def _read(side: Path) -> Mapping[str, object]:
    try:
        found = json.loads(side.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        problem = f"holds an unreadable {_SIDE}: {error}"
        raise ArgumentValueError("log_dir", str(side.parent), problem, _REMEDY) from error
    return found if isinstance(found, dict) else {}


class _CheckingUnpickler(pickle.Unpickler):
    """Reads a pickle while refusing every import but classes of known packages."""

    def __init__(self, file: BinaryIO, packages: frozenset[str]) -> None:
        super().__init__(file)
        self._packages = packages

    def find_class(self, module: str, name: str) -> Any:
        """Return an allowed class.

        Raises:
            UnpicklingError: It is not a class, or not one of the packages'.
        """
        allowed = name in _BUILTINS if module == "builtins" else module.split(".", 1)[0] in self._packages
        found = super().find_class(module, name) if allowed else None
        if not isinstance(found, type):
            # A function that a pickle may call is as good as any code: only classes pass.
            raise pickle.UnpicklingError(f"it would import {module}.{name}")
        return found


def _check(state: Path, packages: frozenset[str]) -> object:
    try:
        with state.open("rb") as file:
            found: object = _CheckingUnpickler(file, packages).load()
    except (pickle.UnpicklingError, EOFError, AttributeError, ImportError, IndexError, ValueError, TypeError) as error:
        problem = f"holds a checkpoint that is not safe to read: {error}"
        raise ArgumentValueError("log_dir", str(state.parent), problem, _REMEDY) from error
    return found
