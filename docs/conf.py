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
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_design",
]
myst_enable_extensions = ["colon_fence"]
exclude_patterns = ["_build"]
html_theme = "furo"
pygments_style = "friendly"  # which colours a diff
html_title = f"combee_dspy {release}"
html_extra_path = ["../.claude/skills/combee-dspy/SKILL.md"]
myst_heading_anchors = 3
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
napoleon_numpy_docstring = False


# The rooms, by what a reader wants to do. What is named by no task stands under "Extend".
TASKS = {
    "Optimize": (
        "Combee, its options, budgets and report.",
        (
            "combee_dspy",
            "combee_dspy.combee",
            "combee_dspy.options",
            "combee_dspy.report",
            "combee_dspy.presets",
            "combee_dspy.many",
            "combee_dspy.loading",
        ),
    ),
    "Choose how it learns": (
        "Aggregators, operators, artifacts, guards and when to stop.",
        (
            "combee_dspy.aggregators",
            "combee_dspy.operators",
            "combee_dspy.artifacts",
            "combee_dspy.memory",
            "combee_dspy.skills",
            "combee_dspy.weighers",
            "combee_dspy.controllers",
            "combee_dspy.diversity",
            "combee_dspy.guards",
            "combee_dspy.stopping",
        ),
    ),
    "Learn from traces": (
        "Recorded rollouts: sources, and lessons without a run.",
        ("combee_dspy.traces", "combee_dspy.learning"),
    ),
    "Measure": (
        "Judges, held-out rows, costs and benchmarks.",
        ("combee_dspy.evaluation", "combee_dspy.costs", "combee_dspy.benchmarks"),
    ),
    "Look inside": (
        "Trackers, the journal, events, the book of lessons and errors.",
        (
            "combee_dspy.tracking",
            "combee_dspy.journal",
            "combee_dspy.events",
            "combee_dspy.lessons",
            "combee_dspy.records",
            "combee_dspy.exceptions",
        ),
    ),
    "Ship": (
        "Diagnose, plan, verify, publish, and let a canary decide.",
        ("combee_strategist",),
    ),
    "Use parts of it elsewhere": (
        "The reducer in dspy.GEPA and in gepa.",
        ("combee_dspy.reducer",),
    ),
}


def write_api(app: Sphinx) -> None:
    """Write a page for each room, with all its public names: none is left out, and none may lack a
    docstring.
    """
    folder = Path(app.srcdir) / "api"
    rooms: dict[str, list[str]] = {}  # the names of each
    seen: set[int] = set()
    for module in _modules():
        names = [name for name in module.__all__ if id(getattr(module, name)) not in seen]
        objects = [getattr(module, name) for name in names]
        vars(module).update(
            zip(names, objects, strict=True)
        )  # what a module loads late is there when autodoc looks
        seen.update(map(id, objects))
        for name, thing in zip(names, objects, strict=True):
            if (inspect.isclass(thing) or inspect.isroutine(thing)) and not inspect.getdoc(thing):
                logging.getLogger(__name__).warning("%s.%s has no docstring", module.__name__, name)
        if names:
            rooms[module.__name__] = names
            names.sort(key=lambda name: name != "Combee")  # which readers come for
            directive = (
                f".. automodule:: {module.__name__}\n   :members: {', '.join(names)}\n"
                "   :show-inheritance:"
            )
            _write(
                folder / f"{module.__name__}.md",
                f"# `{module.__name__}`\n\n```{{eval-rst}}\n{directive}\n```\n",
            )
    for page in folder.glob("*.md"):
        if page.stem not in (*rooms, "index"):
            page.unlink()  # of a room that is no more
    _write(folder / "index.md", "# API\n\nEvery public name, by task.\n" + _tasks(rooms))


def _tasks(rooms: dict[str, list[str]]) -> str:
    """Return the rooms by task, each once; a package brings the rooms below it."""
    text = ""
    left = dict(rooms)
    for task, (summary, packages) in TASKS.items():
        chosen = {
            room: left[room]
            for package in packages
            for room in rooms
            if room == package or (room.startswith(f"{package}.") and package != "combee_dspy")
            if room in left
        }
        left = {room: names for room, names in left.items() if room not in chosen}
        text += _chapter(task, summary, chosen)
    return text + _chapter("Extend", "What strategies and their tests are made of.", left)


def _chapter(task: str, summary: str, rooms: dict[str, list[str]]) -> str:
    lines = (
        f"- [`{room}`]({room}.md): " + ", ".join(f"{{py:obj}}`~{room}.{name}`" for name in names)
        for room, names in rooms.items()
    )
    listed, pages = "\n".join(lines), "\n".join(rooms)
    return (
        f"\n## {task}\n\n{summary}\n\n{listed}\n\n"
        f"```{{toctree}}\n:hidden:\n:maxdepth: 1\n\n{pages}\n```\n"
    )


def write_llms(app: Sphinx, error: Exception | None) -> None:
    """Write llms.txt for the site: its links are to pages, and those of the repository to files."""
    text = (ROOT / "llms.txt").read_text(encoding="utf-8")
    text = re.sub(r"\(docs/(\S+?)\.md\)", r"(\1.html)", text)
    text = text.replace(".claude/skills/combee-dspy/", "")
    Path(app.outdir, "llms.txt").write_text(text, encoding="utf-8")


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
    app.connect("build-finished", write_llms)
