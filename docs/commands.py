"""Writes the pages of the command line into ``docs/cli``, from the commands themselves; git ignores the folder."""

from __future__ import annotations

import inspect
import shutil
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from uneven.cli import application
from uneven.cli.commands import COMMANDS
from uneven.cli.help import HelpfulCommand, row

FOLDER = Path(__file__).parent / "cli"


def write(*_: object) -> None:
    """Write a page for each command, and the index. Sphinx calls it before it reads the pages."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    ours = [command for command in COMMANDS.values() if command.package is None]
    for command in ours:
        group: Any = typer.main.get_command(application([command.name]))
        text = "\n".join(_page(f"uneven {command.name}", group.commands[command.name], "="))
        (FOLDER / f"{command.name}.rst").write_text(text)
    rows = "\n".join(f"* :doc:`uneven {command.name} <{command.name}>`: {command.short}" for command in ours)
    names = "\n   ".join(command.name for command in ours)
    (FOLDER / "index.rst").write_text(
        f"Command line\n============\n\n{rows}\n\n.. toctree::\n   :hidden:\n\n   {names}\n"
    )


def _page(called: str, command: Any, underline: str) -> Iterator[str]:
    yield from (called, underline * len(called), "")
    context = command.context_class(command, info_name=called)
    usage = " ".join(command.collect_usage_pieces(context))
    yield from (".. code-block:: text", "", f"   {called} {usage}", "", "", *_help(command.help or ""), "")
    yield from (f".. program:: {called}", "")
    panels = command.panels() if isinstance(command, HelpfulCommand) else {}
    for panel, options in panels.items():
        yield from (f".. rubric:: {panel}", "")
        for option in options:
            yield from _option(option, context)
    for name, inner in getattr(command, "commands", {}).items():
        yield from _page(f"{called} {name}", inner, "-")


def _help(text: str) -> Iterator[str]:
    """Yield the help text; its blocks of examples become code."""
    for block in inspect.cleandoc(text).replace("\b\n", "").split("\n\n"):
        head, _, rest = block.strip().partition("\n")
        if head.endswith(":") and rest.startswith(" "):
            examples = textwrap.indent(textwrap.dedent(rest), "   ")
            yield from (head, "", ".. code-block:: text", "", *examples.split("\n"), "")
        else:
            yield from (_plain(block), "")


def _option(option: Any, context: Any) -> Iterator[str]:
    names, text = row(option, context)
    yield from (f".. option:: {names}", "", f"   {_plain(text)}", "")


def _plain(text: str) -> str:
    """Return text without characters that reStructuredText would read as markup."""
    return " ".join(text.split()).replace("\\", "\\\\").replace("*", "\\*").replace("`", "\\`").replace("_ ", "\\_ ")
