"""The ``--help`` of all commands: sections of options, the most used ones first, names of plug-ins, and exit codes."""

import importlib
import re
from collections.abc import Callable
from typing import Any, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

from uneven.errors import ConfigError, UnknownNameError

Function = TypeVar("Function", bound=Callable[..., None])

NAMES = ["--help", "-h", "--help-all"]  # of the help option; the first one is in messages about wrong usage
_ALL = "--help-all"

BALANCERS = "{balancers}"
POLICIES = "{policies}"
PREDICTORS = "{predictors}"

_WHERE = {
    BALANCERS: ("uneven.policy.balance", "balancers"),
    POLICIES: ("uneven.policy.sync", "policies"),
    PREDICTORS: ("uneven.policy.predict", "predictors"),
}

_EXIT_CODES = "Exit codes: 0 success; 2 wrong setting, or another error."


def first(*names: str) -> Callable[[Function], Function]:
    """Return a decorator for a command with many options: ``--help`` shows these ones, ``--help-all`` all."""

    def marked(function: Function) -> Function:
        function.__dict__["first"] = names
        return function

    return marked


def group(text: str) -> typer.Typer:
    """Return a command that consists of commands, see :func:`verb`."""
    app = typer.Typer(cls=HelpfulGroup, rich_markup_mode=None, help=text)
    app.callback()(_nothing)  # or typer would make a command of a group with one command
    return app


def verb(app: typer.Typer, name: str) -> Callable[[Function], Function]:
    """Return a decorator that adds a command to a :func:`group`."""
    return app.command(name, cls=HelpfulCommand)


def _nothing() -> None:
    pass


class HelpfulCommand(TyperCommand):
    """A command whose help has a section for each panel of options, and a line about exit codes."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        # A docstring with other exit codes has its own line.
        if self.help and "Exit code" not in self.help:
            text, mark, examples = self.help.partition("\n\n\b\nExample")
            self.help = f"{text}\n\n{_EXIT_CODES}{mark}{examples}"

    @property
    def first(self) -> tuple[str, ...]:
        """The options that ``--help`` shows; empty if it shows all."""
        return getattr(self.callback, "first", ())

    def panels(self, *, everything: bool = True) -> dict[str, list[Any]]:
        """Return panel → its options, in the order of the function's parameters, with the names of plug-ins."""
        _insert_names(self)
        found: dict[str, list[Any]] = {}
        for one in _options(self):
            if everything or set(one.opts) & set(self.first):
                found.setdefault(one.rich_help_panel or "Options", []).append(one)
        return found

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.meta[_ALL] = _ALL in args  # the help option has several names, and does not report which one was typed
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        # typer encloses a required argument in braces, and appends dots to a metavar that has dots already.
        return [self.options_metavar or "", *(_placeholder(one) for one in _arguments(self))]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        rows = [(_placeholder(one), one.help or "") for one in _arguments(self)]
        if rows:
            with formatter.section("Arguments"):
                formatter.write_dl(rows)
        panels = self.panels(everything=ctx.meta.get(_ALL, False) or not self.first)
        for panel, options in panels.items():
            with formatter.section(panel):
                formatter.write_dl([row(one, ctx) for one in options])
        rest = len(_options(self)) - sum(map(len, panels.values()))
        _write_help_rows(formatter, f"Show {rest} more options." if rest else "")


class HelpfulGroup(TyperGroup):
    """A group of commands that offers the nearest name for an unknown one."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args and not ctx.resilient_parsing:
            typer.echo(ctx.get_help(), err=True)
            raise typer.Exit(2)
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [self.options_metavar or "", "COMMAND [ARG]…"]

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] not in self.commands and not ctx.resilient_parsing:
            raise UnknownNameError(f"command of {ctx.command_path}", args[0], self.commands)
        return super().resolve_command(ctx, args)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        self.format_commands(ctx, formatter)
        rows = [one.get_help_record(ctx) for one in _options(self)]
        if rows:
            with formatter.section("Options"):
                formatter.write_dl(rows)
        _write_help_rows(formatter)


def _options(command: Any) -> list[Any]:
    return [one for one in command.params if one.param_type_name == "option" and not one.hidden]


def _arguments(command: Any) -> list[Any]:
    return [one for one in command.params if one.param_type_name == "argument"]


def _placeholder(argument: Any) -> str:
    return argument.metavar or str(argument.name).upper()


def row(option: Any, ctx: Any) -> tuple[str, str]:
    """Return an option with its placeholder, and its text."""
    name, text = option.get_help_record(ctx)
    # The default in the same way as in our texts, and no bounds as `x>=1`, because an error names them.
    text = re.sub(r"(; )?([\d.]+<=)?x[<>]=[\d.]+(?=\])", "", text).replace("  [", " [").removesuffix(" []")
    return name, text


def _write_help_rows(formatter: Any, more: str = "") -> None:
    rows = [("-h, --help", "Show this text.")]
    with formatter.section("Help"):
        formatter.write_dl([*rows, (_ALL, more)] if more else rows)


def _insert_names(command: Any) -> None:
    """Put the names of plug-ins into the texts of options, instead of :data:`BALANCERS` and similar placeholders."""
    for one in _options(command):
        for place, (module, name) in _WHERE.items():
            if place in (one.help or ""):
                one.help = one.help.replace(place, _names(getattr(importlib.import_module(module), name)))


def _names(registry: Any) -> str:
    try:
        return ", ".join(registry.listed())
    except ConfigError as error:  # never fail while printing help
        return f"{', '.join(registry)} (and {error})"
