"""What compiled code reads and assigns, whose it is, and what objects hold. Pure."""

from __future__ import annotations

import dis
import functools
import sys
import sysconfig
import types
from collections.abc import Iterator, Sequence
from contextlib import suppress

_LIBRARIES = tuple(
    path for name, path in sysconfig.get_paths().items() if name.endswith(("lib", "stdlib"))
)
_READS_NAME = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})
_READS_VARIABLE = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_ATTR"})
_FILLS = frozenset({"add", "append", "extend", "insert", "setdefault", "update"})
_MAKES_OBJECTS = frozenset({"__init__", "__new__", "__post_init__", "__setstate__", "__set_name__"})


def variables_around(function: types.FunctionType) -> dict[str, object]:
    """Return the variables of outer functions that a function uses, by name, if they are set."""
    variables = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):
            variables[name] = cell.cell_contents
    return variables


def assigned_by(function: types.FunctionType) -> frozenset[str]:
    """Return the globals, outer variables and attributes that a function assigns, or whose items
    it sets; no attributes where it makes the object.
    """
    return _assigned_in(function.__code__, function.__name__ in _MAKES_OBJECTS)


def parts_of(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield compiled code and all that is nested in it."""
    yield code
    for part in code.co_consts:
        if isinstance(part, types.CodeType):
            yield from parts_of(part)


@functools.lru_cache(maxsize=1_024)
def names_read(code: types.CodeType) -> frozenset[str]:
    """Return the global names that code reads. Its ``co_names`` would name attributes too."""
    return frozenset(
        step.argval
        for part in parts_of(code)
        for step in dis.get_instructions(part)
        if step.opname in _READS_NAME
    )


@functools.lru_cache(maxsize=1_024)
def _assigned_in(code: types.CodeType, makes_object: bool) -> frozenset[str]:
    assigns = {"STORE_GLOBAL", "DELETE_GLOBAL"}
    assigns |= set() if makes_object else {"STORE_ATTR", "DELETE_ATTR"}
    names: set[str] = set()
    for part in parts_of(code):
        steps = list(dis.get_instructions(part))
        for place, step in enumerate(steps):
            is_outer = step.opname == "STORE_DEREF" and step.argval in part.co_freevars
            if step.opname in assigns or is_outer:
                names.add(step.argval)
            elif not makes_object:
                names |= _container_filled(steps, place)
    return frozenset(names)


def _container_filled(steps: Sequence[dis.Instruction], place: int) -> set[str]:
    """Return the name of the container that an instruction fills; empty where it fills none."""
    step = steps[place]
    if step.opname == "STORE_SUBSCR":
        # The container lies below the key, which is whatever was put on the stack last.
        height = 0
        while place > 0 and height != 1:
            place -= 1
            height += dis.stack_effect(steps[place].opcode, steps[place].arg, jump=False)
    elif step.opname not in ("LOAD_METHOD", "LOAD_ATTR") or step.argval not in _FILLS:
        return set()
    loads = steps[place - 1] if place > 0 else step
    return {loads.argval} if loads.opname in _READS_VARIABLE else set()


def assigned_by_class(kind: type) -> frozenset[str]:
    """Return the attributes that an installed class assigns in its methods; none for DSPy's own."""
    return frozenset(
        name
        for each in kind.__mro__
        if is_installed(each.__module__) and each.__module__.partition(".")[0] != "dspy"
        for part in vars(each).values()
        if isinstance(part, types.FunctionType)
        for name in assigned_by(part)
    )


def attributes_of(value: object) -> dict[str, object]:
    """Return an object's attributes by name, those in slots too except for private ones."""
    declared = [vars(kind).get("__slots__", ()) for kind in type(value).__mro__]
    names = [name for slots in declared for name in ([slots] if isinstance(slots, str) else slots)]
    public = [name for name in names if not name.startswith("__") and hasattr(value, name)]
    own = getattr(value, "__dict__", None)
    return {name: getattr(value, name) for name in public} | (own if isinstance(own, dict) else {})


def name_of(kind: type | types.FunctionType) -> str:
    """Return the full name of a class or function."""
    return f"{kind.__module__}.{kind.__qualname__}"


@functools.cache
def is_installed(module: str) -> bool:
    """Return whether a module belongs to the standard library or an installed package."""
    if module == "__main__":
        return False  # a notebook's own code, though its launcher is installed
    if module.partition(".")[0] in sys.stdlib_module_names:
        return True
    file = getattr(sys.modules.get(module), "__file__", None)
    return isinstance(file, str) and file.startswith(_LIBRARIES)
