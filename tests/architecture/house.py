"""Counts of Python files: code tokens, names that only their author knows. Pure."""

from __future__ import annotations

import ast
import io
import keyword
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass

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
