"""The command line ``uneven``.

It imports only the typed command, so ``uneven --help`` does not wait for torch.
"""

import importlib
import io
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import typer

from uneven.cli import help as helps
from uneven.cli.commands import COMMANDS, EXAMPLES, CliCommand, found
from uneven.errors import ConfigError, LaunchError, UnevenError, UnknownNameError, install_hint, nearest
from uneven.runtime.installed import VERSION

HELP: dict[str, Any] = {"help_option_names": helps.NAMES}
_TORCHRUN: dict[str, Any] = {"token_normalize_func": lambda word: word.replace("_", "-")}
"""torchrun's options accept both spellings: --nproc-per-node, --nproc_per_node."""
USAGE_EXIT_CODE = 2  # the exit code for all errors before training starts, as is usual for a wrong flag
_UsageError: Any = typer.BadParameter.__base__  # of click, or of the copy of it that newer typers have


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit: 0 on success, a LaunchError's ``exit_code``, 2 for other errors of uneven."""
    typed = list(sys.argv[1:] if arguments is None else arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # file names need not be UTF-8, and may be printed
    try:
        code = application(typed)(typed, prog_name="uneven", standalone_mode=False)
    except _UsageError as error:
        _explain(error)
        sys.exit(USAGE_EXIT_CODE)
    except typer.Abort:
        sys.exit(1)
    except UnevenError as error:
        _complain(error)
        sys.exit(error.exit_code if isinstance(error, LaunchError) else USAGE_EXIT_CODE)
    sys.exit(code or 0)


def application(typed: Sequence[str]) -> typer.Typer:
    """Return the typer application for these arguments. Raises UnknownNameError if the first is not a command,
    ConfigError if the command's package is not installed."""
    completing = "_UNEVEN_COMPLETE" in os.environ  # a shell asks, and the words are in other variables
    words = _words_of_shell() if completing else typed
    asked = words[0] if words and not words[0].startswith("-") else None
    ours = asked in COMMANDS and COMMANDS[asked].package is None
    commands = COMMANDS if ours else found()  # the search for packages takes longer than everything else here
    if asked is not None and asked not in commands and not completing:
        raise UnknownNameError("command", asked, commands)
    app = typer.Typer(
        cls=helps.HelpfulGroup,
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


def _words_of_shell() -> list[str]:
    """Return the words after ``uneven`` on a command line that bash, or another shell, completes."""
    line = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS", "")
    try:
        return shlex.split(line)[1:]
    except ValueError:  # a quote is not closed yet
        return line.split()[1:]


def _add(app: typer.Typer, command: CliCommand, *, real: bool) -> None:
    # Commands that were not typed get a stand-in, so their modules are not imported.
    what = _load(command) if real else _absent
    if isinstance(what, typer.Typer):
        names = HELP if command.package is None else {"help_option_names": helps.NAMES[:2]}
        app.add_typer(what, name=command.name, short_help=command.short, context_settings=names)
        return
    app.command(
        command.name,
        cls=helps.HelpfulCommand,
        short_help=command.short,
        help=None if real else command.short,  # the function's docstring is the long help
        context_settings=HELP | ({"allow_interspersed_args": False, **_TORCHRUN} if command.passes_on else {}),
    )(what)


def _load(command: CliCommand) -> Callable[..., Any] | typer.Typer:
    if command.where is None:
        raise ConfigError(f"uneven {command.name} is not installed: {install_hint('./benchmarks')}")
    place, _, name = command.where.partition(":")
    module = importlib.import_module(place)
    if command.package is not None:
        from uneven.runtime import frames

        frames.not_the_users(module)
    what: Callable[..., Any] | typer.Typer = getattr(module, name)
    return what


# Replaces the commands that were not typed, because their modules are not imported.
def _absent() -> None:
    raise AssertionError("a command that was not typed was called")


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


def _explain(error: Any) -> None:
    """Print an error of the command line's syntax, and the way to the help."""
    message = error.format_message()
    if message.startswith("Usage:"):  # the help of a group without a command
        typer.echo(message, err=True)
        return
    similar = nearest(getattr(error, "option_name", ""), getattr(error, "possibilities", None) or ())
    if similar is not None:
        message = f"{error.message}; did you mean {similar}?"
    if hasattr(error.__cause__, "errors"):  # of pydantic, in newer typers; their message does not have the value
        wrong = error.__cause__.errors()[0]
        name = error.param.opts[-1] if error.param.param_type_name == "option" else error.param.metavar
        message = f"{name} {wrong['input']}: {wrong['msg'].removeprefix('Value error, ')}"
    hint = f" (see `{error.ctx.command_path} --help`)" if error.ctx is not None else ""
    _print_error(f"{message.removesuffix('.')}{hint}")


def _complain(error: UnevenError) -> None:
    """Print the lines of the user's own modules that led to an error, and its message."""
    if os.environ.get("UNEVEN_TRACEBACK") == "1":
        import traceback

        traceback.print_exception(error)
        return
    from uneven.runtime import frames

    for line in frames.own_places(error):
        typer.echo(line, err=True)
    _print_error(str(error))


def _print_error(message: str) -> None:
    # Imported here, so that commands that succeed do not load rich.
    from uneven.journal.report.console import Console

    console = Console(stderr=True, soft_wrap=True, highlight=False)
    console.print("error:", end=" ", style="bold red")
    console.print(message, style="red")
