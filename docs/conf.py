"""The site: guides, the command line and the API, built offline from this repository (`make
docs`).
"""

from __future__ import annotations

import importlib
import inspect
import itertools
import pkgutil
import re
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from types import ModuleType

import dspy
import typer
from sphinx.application import Sphinx
from sphinx.util import logging
from typer.testing import CliRunner

import combee_dspy
import combee_strategist
from combee_dspy.cli import app as combee
from combee_dspy.cli._group import GROUP

ROOT = Path(__file__).parents[1]

project = "combee_dspy"
author = "The combee_dspy authors"
release = combee_dspy.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
exclude_patterns = ["_build", "SKILL.md"]
html_theme = "furo"
html_title = f"combee_dspy {release}"
html_extra_path = ["llms.txt", "SKILL.md"]
myst_heading_anchors = 3
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
napoleon_numpy_docstring = False


def write_api(app: Sphinx) -> None:
    """Write a page for each room, with all its public names: none is left out, and none may lack a
    docstring.
    """
    folder = Path(app.srcdir) / "api"
    rooms = []
    seen: set[int] = set()
    for module in _modules():
        names = [one for one in module.__all__ if id(getattr(module, one)) not in seen]
        objects = [getattr(module, one) for one in names]
        vars(module).update(
            zip(names, objects, strict=True)
        )  # what a module loads late is there when autodoc looks
        seen.update(id(one) for one in objects)
        for name, thing in zip(names, objects, strict=True):
            if (inspect.isclass(thing) or inspect.isroutine(thing)) and not inspect.getdoc(thing):
                logging.getLogger(__name__).warning("%s.%s has no docstring", module.__name__, name)
        if names:
            rooms.append(module.__name__)
            listed = ", ".join(names)
            directive = (
                f".. automodule:: {module.__name__}\n   :members: {listed}\n   :show-inheritance:"
            )
            _write(
                folder / f"{rooms[-1]}.md",
                f"# `{rooms[-1]}`\n\n```{{eval-rst}}\n{directive}\n```\n",
            )
    for page in folder.glob("*.md"):
        if page.stem not in (*rooms, "index"):
            page.unlink()  # of a room that is no more
    toctree = "\n".join(rooms)
    said = "# API\n\nEvery public name, by room."
    _write(folder / "index.md", f"{said}\n\n```{{toctree}}\n:maxdepth: 1\n\n{toctree}\n```\n")


def _modules() -> Iterator[ModuleType]:
    """Yield the public modules that say what they offer: what lies higher first."""
    names = []
    for package in (combee_dspy, combee_strategist):
        names += [package.__name__]
        names += [
            module.name
            for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
        ]
    for name in sorted(names, key=lambda name: (name.partition(".")[0], name.count("."), name)):
        if not re.search(r"\._|combee_dspy\.cli|combee_strategist\.commands|__main__", name):
            module = importlib.import_module(name)
            if getattr(module, "__all__", ()):
                yield module


def write_commands(app: Sphinx) -> None:
    """Write the help page of every command."""
    texts = ["# Command line\n"]

    def add(words: tuple[str, ...], command: typer.core.TyperGroup) -> None:
        wide = {"COLUMNS": "100", "TERM": "dumb"}
        asked = CliRunner().invoke(combee, [*words, "--help"], env=wide, prog_name="combee")
        name = " ".join(("combee", *words))
        texts.append(
            f"{'#' * min(len(words) + 1, 3)} {name}\n\n```text\n{asked.output.strip()}\n```\n"
        )
        for one, below in getattr(command, "commands", {}).items():
            add((*words, one), below)
        if not words:
            for point in sorted(metadata.entry_points(group=GROUP), key=lambda point: point.name):
                if point.dist and point.dist.name == "combee-strategist":
                    below = point.load()
                    group = isinstance(below, typer.Typer)
                    add((point.name,), typer.main.get_command(below) if group else below)

    add((), typer.main.get_command(combee))
    _write(Path(app.srcdir) / "cli.md", "\n".join(texts))


def write_tutorials(app: Sphinx) -> None:
    """Turn the scripts of `tutorials/`, which the tests run, into pages."""
    for script in sorted((ROOT / "tutorials").glob("*.py")):
        text = ""
        for cell in re.split(r"^# %%", script.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
            first, _, body = cell.partition("\n")
            said = re.sub(r"^# ?", "", body, flags=re.MULTILINE).strip()
            text += f"{said}\n\n" if "markdown" in first else f"```python\n{body.strip()}\n```\n\n"
        _write(Path(app.srcdir) / "tutorials" / f"{script.stem}.md", text)


def _write(page: Path, text: str) -> None:
    # What has not changed is not touched, so that it is not built again.
    page.parent.mkdir(exist_ok=True)
    if not page.exists() or page.read_text(encoding="utf-8") != text:
        page.write_text(text, encoding="utf-8")


def show_prompts(
    app: Sphinx, what: str, name: str, thing: object, options: object, lines: list[str]
) -> None:
    """Show the docstring of a DSPy signature as it stands: it is a prompt, in nobody's markup."""
    if inspect.isclass(thing) and issubclass(thing, dspy.Signature):
        lines[:] = ["::", "", *(f"    {line}" for line in lines)]
    elif getattr(thing, "__module__", "").startswith("dspy."):
        lines.clear()  # inherited, and written in another markup


def shorten_types(app: Sphinx, what: str, name: str, *rest: object) -> None:
    """Show ``Annotated[int, …]`` as ``int``: what is checked stands in the text."""
    types = app.env.current_document.autodoc_annotations.get(name, {})
    for one in types:
        while found := re.search(r"~?(?:typing\.)?Annotated\[", types[one]):
            before, after = types[one][: found.start()], types[one][found.end() :]
            depths = itertools.accumulate(
                ((letter in "[(") - (letter in "])") for letter in after), initial=1
            )
            end = next((index for index, depth in enumerate(depths) if depth == 0), len(after) + 1)
            types[one] = before + after[: end - 1].split(", ", 1)[0] + after[end:]


def setup(app: Sphinx) -> None:
    """Connect what is written before a build reads its sources."""
    app.connect("autodoc-process-docstring", show_prompts, priority=100)
    app.connect("autodoc-process-signature", shorten_types, priority=900)
    for written in (write_api, write_commands, write_tutorials):
        app.connect("builder-inited", written)
