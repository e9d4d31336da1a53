"""The few Dockerfile instructions that need no image."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

__all__ = ["NeedsImageError", "Recipe", "read_recipe"]


class NeedsImageError(ValueError):
    """A task's environment cannot be had without building its image."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """What to lay out.

    Attributes:
        workdir: Where commands start.
        env: Environment variables.
        copies: (path below the environment's folder, absolute target) in order.
    """

    workdir: str
    env: dict[str, str]
    copies: tuple[tuple[str, str], ...]


def read_recipe(folder: Path, workdir: str | None) -> Recipe:
    """Read ``Dockerfile``: FROM is taken for this machine's own system; WORKDIR, ENV, COPY and
    LABEL are followed.

    Raises:
        NeedsImageError: It does anything else, such as RUN, or there is a compose file.
    """
    if (folder / "docker-compose.yaml").exists():
        raise NeedsImageError("the task is made of several containers")
    file = folder / "Dockerfile"
    place, env, copies = "/", {}, []
    for line in _lines(file.read_text(encoding="utf-8")) if file.exists() else ():
        instruction, _, rest = line.partition(" ")
        match instruction.upper():
            case "FROM" | "LABEL":
                continue
            case "WORKDIR":
                place = str(PurePosixPath(place, rest.strip()))
            case "ENV":
                env.update(_variables(rest))
            case "COPY" if not rest.lstrip().startswith("--"):
                copies += _copies(rest, place)
            case _:
                raise NeedsImageError(f"its Dockerfile has {instruction.upper()}, which needs the image")
    return Recipe(workdir or place, env, tuple(copies))


def _lines(text: str) -> list[str]:
    joined = text.replace("\\\n", " ")
    return [line.strip() for line in joined.splitlines() if line.strip() and not line.lstrip().startswith("#")]


def _variables(rest: str) -> dict[str, str]:
    words = shlex.split(rest)
    if words and "=" not in words[0]:
        return {words[0]: " ".join(words[1:])}
    return dict(word.split("=", 1) for word in words)


def _copies(rest: str, place: str) -> list[tuple[str, str]]:
    words = json.loads(rest) if rest.lstrip().startswith("[") else shlex.split(rest)
    if len(words) < 2:
        raise NeedsImageError("its Dockerfile has a COPY that cannot be read")
    *sources, target = words
    full = str(PurePosixPath(place, target))
    if target.endswith("/") or len(sources) > 1 or target in (".", "./"):
        full += "/"
    return [(source, full) for source in sources]
