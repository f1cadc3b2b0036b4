"""The command line ``uneven``.

It imports only the typed command, so ``uneven --help`` does not wait for torch.
"""

from __future__ import annotations

import importlib
import io
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import typer

from uneven.cli.commands import COMMANDS, EXAMPLES, CliCommand, found
from uneven.cli.options import Naming
from uneven.errors import ConfigError, LaunchError, UnevenError, UnknownNameError, install_hint
from uneven.runtime.installed import VERSION

HELP: dict[str, Any] = {"help_option_names": ["-h", "--help"]}
_TORCHRUN: dict[str, Any] = {"token_normalize_func": lambda word: word.replace("_", "-")}
"""torchrun's options accept both spellings: --nproc-per-node, --nproc_per_node."""
USAGE_EXIT_CODE = 2  # the exit code for all errors before training starts, as is usual for a wrong flag


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit: 0 on success, a LaunchError's ``exit_code``, 2 for other errors of uneven."""
    typed = list(sys.argv[1:] if arguments is None else arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # file names need not be UTF-8, and may be printed
    try:
        application(typed)(typed, prog_name="uneven")
    except UnevenError as error:
        _complain(error)
        sys.exit(error.exit_code if isinstance(error, LaunchError) else USAGE_EXIT_CODE)
    sys.exit(0)


def application(typed: Sequence[str]) -> typer.Typer:
    """Return the typer application for these arguments. Raises UnknownNameError if the first is not a command,
    ConfigError if the command's package is not installed."""
    asked = typed[0] if typed and not typed[0].startswith("-") else None
    ours = asked in COMMANDS and COMMANDS[asked].package is None
    commands = COMMANDS if ours else found()  # the search for packages takes longer than everything else here
    if asked is not None and asked not in commands:
        raise UnknownNameError("command", asked, commands)
    app = typer.Typer(
        add_completion=False,
        no_args_is_help=True,
        # Rich's markup would drop "[default: …]" in a help text, and Markdown the line breaks of examples.
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        help="Train PyTorch models on machines that differ in speed, are shared, far apart, or may disappear.",
        epilog="\b\n" + EXAMPLES.replace("\n\n", "\n \n"),
        context_settings=HELP,
    )
    app.callback()(_top)
    for command in commands.values():
        _add(app, command, real=command.name == asked)
    return app


def _add(app: typer.Typer, command: CliCommand, *, real: bool) -> None:
    # Commands that were not typed get a stand-in, so their modules are not imported.
    what = _load(command) if real else _absent
    if isinstance(what, typer.Typer):
        app.add_typer(what, name=command.name, short_help=command.short)
        return
    app.command(
        command.name,
        cls=Naming,
        short_help=command.short,
        help=None if real else command.short,  # the function's docstring is the long help
        context_settings=HELP | ({"allow_interspersed_args": False, **_TORCHRUN} if command.passes_on else {}),
    )(what)


def _load(command: CliCommand) -> Callable[..., Any] | typer.Typer:
    if command.where is None:
        raise ConfigError(f"uneven {command.name} is not installed: {install_hint('./benchmarks')}")
    module, _, name = command.where.partition(":")
    what: Callable[..., Any] | typer.Typer = getattr(importlib.import_module(module), name)
    return what


# Stands for commands that were not typed, whose modules are not imported.
def _absent() -> None:
    raise AssertionError("this stands for a command that was not typed")


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"uneven {VERSION}")
        raise typer.Exit


def _top(
    version: bool = typer.Option(
        False, "--version", help="Show the version and exit.", callback=_show_version, is_eager=True
    ),
) -> None:
    pass


def _complain(error: UnevenError) -> None:
    # Imported here, so that commands that succeed do not load rich.
    from uneven.journal.report.console import Console

    console = Console(stderr=True, soft_wrap=True, highlight=False)
    console.print("error:", end=" ", style="bold red")
    console.print(str(error), style="red")
