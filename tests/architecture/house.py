"""Counts of Python files: code tokens, names that only their author knows. Pure."""

from __future__ import annotations

import ast
import io
import keyword
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# A name of these says neither what it holds nor what it does.
PRIVATE_WORDS = frozenset(
    (
        "one",
        "found",
        "given",
        "said",
        "told",
        "made",
        "known",
        "kept",
        "shown",
        "heard",
        "taken",
        "begun",
        "asked",
        "meant",
    )
)
_LAYOUT = frozenset(
    (
        tokenize.COMMENT,
        tokenize.DEDENT,
        tokenize.ENCODING,
        tokenize.ENDMARKER,
        tokenize.INDENT,
        tokenize.NEWLINE,
        tokenize.NL,
    )
)
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True, slots=True)
class Counts:
    """What a text of Python holds.

    Attributes:
        tokens: Code tokens: no docstring, comment or layout.
        names: Tokens that are names; keywords are none.
        private: Names that are one of ``PRIVATE_WORDS``, underscores aside.
    """

    tokens: int
    names: int
    private: int


def count(source: str) -> Counts:
    """Return the counts of one file."""
    documentation = set(_docstrings(ast.parse(source)))
    code = [
        token
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type not in _LAYOUT and token.start not in documentation
    ]
    names = [
        token.string
        for token in code
        if token.type == tokenize.NAME and not keyword.iskeyword(token.string)
    ]
    private = sum(name.strip("_") in PRIVATE_WORDS for name in names)
    return Counts(len(code), len(names), private)


def _docstrings(tree: ast.AST) -> Iterator[tuple[int, int]]:
    for node in ast.walk(tree):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            yield node.body[0].lineno, node.body[0].col_offset


def shared_functions(root: Path) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Yield the functions that one room of a package shows to others, as ``file:name``.

    Those are the functions, and the public methods of classes, that a room's ``__init__`` or a
    module of its own names in ``__all__``.
    """
    for path in sorted(root.rglob("*.py")):
        name, *inside = path.relative_to(root).parts
        room = root / name
        names = _exported((room / "__init__.py") if inside else room)
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if getattr(node, "name", "") not in names:
                continue
            of_class = isinstance(node, ast.ClassDef)
            for function in node.body if isinstance(node, ast.ClassDef) else [node]:
                if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    continue
                if function.name in ("__init__", "__call__") or not function.name.startswith("_"):
                    owner = f"{node.name}." if of_class else ""  # type: ignore[attr-defined]
                    yield f"{path.relative_to(root)}:{owner}{function.name}", function


def takes_any(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Return whether ``Any`` stands in the signature of a function."""
    arguments = function.args
    every = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
    annotations = [item.annotation for item in (*every, arguments.vararg, arguments.kwarg) if item]
    return any(
        isinstance(node, ast.Name) and node.id == "Any"
        for annotation in (*annotations, function.returns)
        if annotation is not None
        for node in ast.walk(annotation)
    )


def _exported(module: Path) -> frozenset[str]:
    if not module.exists():
        return frozenset()
    return frozenset(
        constant.value
        for node in ast.parse(module.read_text(encoding="utf-8")).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
        for constant in ast.walk(node.value)
        if isinstance(constant, ast.Constant) and isinstance(constant.value, str)
    )
