"""The user's own objects, by ``module:object``."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from combee_dspy.exceptions import ArgumentTypeError, ArgumentValueError

__all__ = ["load_metric", "load_object", "load_program", "look_in"]


def look_in(*folders: Path) -> None:
    """Let modules in these folders be imported, the first folder first."""
    for folder in reversed(folders):
        path = str(folder.resolve())
        if path in sys.path:
            sys.path.remove(path)
        sys.path.insert(0, path)


def load_object(argument: str, target: str) -> Any:
    """Import ``module:object``; dots lead into the object.

    Raises:
        ArgumentValueError: The name has another form, or cannot be imported.
    """
    module_name, colon, path = target.partition(":")
    if not (colon and module_name and path):
        raise ArgumentValueError(argument, target, "is not of the form module:object", "Such as my_package.qa:Program.")
    try:
        found: Any = importlib.import_module(module_name)
    except Exception as error:
        problem = f"cannot be imported: {type(error).__name__}: {error}"
        remedy = "Modules are looked for in the working directory, beside the configuration file, and among installed."
        raise ArgumentValueError(argument, target, problem, remedy) from error
    for part in path.split("."):
        if not hasattr(found, part):
            names = ", ".join(name for name in dir(found) if not name.startswith("_"))
            raise ArgumentValueError(argument, target, f"names nothing called {part!r}", f"There is: {names[:300]}.")
        found = getattr(found, part)
    return found


def load_program(target: str) -> Any:
    """Return the program: the object itself, or what its class or function returns without arguments.

    Raises:
        ArgumentValueError: It cannot be imported or made.
        ArgumentTypeError: It is no ``dspy.Module``.
    """
    import dspy

    found = load_object("program", target)
    if callable(found) and (isinstance(found, type) or not isinstance(found, dspy.Module)):
        try:
            found = found()
        except Exception as error:
            problem = f"cannot be made without arguments: {type(error).__name__}: {error}"
            remedy = "Name an object, or a class or function that needs no arguments."
            raise ArgumentValueError("program", target, problem, remedy) from error
    if not isinstance(found, dspy.Module):
        problem = f"is no DSPy program but {type(found).__name__}"
        remedy = "Name a dspy.Module, its class, or a function that makes one."
        raise ArgumentTypeError("program", target, problem, remedy)
    return found


def load_metric(target: str) -> Callable[..., Any]:
    """Return the metric.

    Raises:
        ArgumentValueError: It cannot be imported.
        ArgumentTypeError: It is not callable.
    """
    found = load_object("metric", target)
    if not callable(found):
        remedy = "Name a function (gold, pred, trace, pred_name, pred_trace)."
        raise ArgumentTypeError("metric", target, f"is not callable but {type(found).__name__}", remedy)
    return found
