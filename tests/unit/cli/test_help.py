"""``--help`` of every command: no type leaks, sections, the most used options first, exit codes."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from uneven.cli import application, main
from uneven.cli.commands import COMMANDS
from uneven.cli.help import BALANCERS, POLICIES, PREDICTORS, HelpfulCommand, HelpfulGroup

MOST_SHOWN = 12
OURS = [name for name, command in COMMANDS.items() if command.package is None]


def tree(words: list[str], command: Any) -> Iterator[tuple[list[str], Any]]:
    """Every command below this one, with the words that call it."""
    yield words, command
    for name, below in getattr(command, "commands", {}).items():
        yield from tree([*words, name], below)


def commands() -> Iterator[tuple[list[str], Any]]:
    for name in OURS:
        top: Any = typer.main.get_command(application([name]))
        yield from tree([name], top.commands[name])


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 0
    return capsys.readouterr().out


@pytest.fixture(autouse=True)
def _of_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def test_every_help_is_readable(capsys: pytest.CaptureFixture[str]) -> None:
    found = list(commands())
    assert len(found) > 25
    for words, command in found:
        text = printed(capsys, *words, "--help-all")
        called = f"uneven {' '.join(words)}"
        assert text.startswith(f"Usage: {called} [OPTIONS]"), called
        assert not re.search(r"<\w+[\[>| ]|\{\w+\}|[a-z]\.\.\.", text), f"a type, a place for names or a cut: {text}"
        assert not any(place in text for place in (BALANCERS, POLICIES, PREDICTORS))
        if isinstance(command, HelpfulGroup):
            continue
        assert isinstance(command, HelpfulCommand)
        assert len(re.findall("^  Exit codes: 0 ", text, flags=re.MULTILINE)) == 1, called
        assert re.search("^  Examples?:$", text, flags=re.MULTILINE), called
        assert "more options" not in text


def test_a_command_with_many_options_shows_the_most_used_ones(capsys: pytest.CaptureFixture[str]) -> None:
    for words, command in commands():
        if isinstance(command, HelpfulGroup):
            continue
        shown = command.panels(everything=not command.first)
        assert sum(map(len, shown.values())) <= MOST_SHOWN, words
        names = {name for one in command.params for name in one.opts}
        assert set(command.first) <= names, words
    short, long = printed(capsys, "run", "--help"), printed(capsys, "run", "--help-all")
    assert len(long.splitlines()) > len(short.splitlines()) + 20
    assert "  --help-all  Show 23 more options." in short
    for panel in ("Workers:", "Training:", "Several machines (as torchrun):", "Help:"):
        assert f"\n{panel}\n" in short
        assert f"\n{panel}\n" in long
    assert "--rdzv-backend static|c10d" not in short
    assert "--rdzv-backend static|c10d" in long


def test_one_name_means_one_thing() -> None:
    meant: dict[str, set[str]] = {}
    for _, command in commands():
        for one in command.params:
            if one.param_type_name == "option":
                meant.setdefault(one.opts[-1], set()).add(one.metavar or "flag")
    several = {name: kinds for name, kinds in meant.items() if len(kinds) > 1}
    assert several == {
        "--balance": {"NAME", "NAME,…"},
        "--sync": {"NAME", "NAME,…"},
    }
    gone = {"--directory", "--out", "--output", "--runs", "--until-accuracy", "--json", "--tensorboard", "--beside"}
    assert not gone & set(meant)


def completed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], line: str) -> list[str]:
    words = line.split(" ")
    monkeypatch.setenv("_UNEVEN_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
    return printed(capsys).split()


def test_a_shell_completes_commands_and_names(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, newer in (("a-run", 1), ("a-walk", 2)):
        (tmp_path / "runs" / name).mkdir(parents=True)
        os.utime(tmp_path / "runs" / name, (newer, newer))
    for line, found in (
        ("uneven sim", ["simulate"]),
        ("uneven search st", ["stop"]),
        ("uneven run --balance lb-", ["lb-bsp"]),
        ("uneven plan demo4 --sync bsp,dil", ["bsp,diloco"]),
        ("uneven run --sync local:every=4,l", []),
        ("uneven simulate demo", ["demo4"]),
        ("uneven watch runs/a", ["runs/a-walk", "runs/a-run"]),
        ("uneven plan runs/a-r", ["runs/a-run"]),
        ("uneven run --rdzv-b", ["--rdzv-backend"]),
        ("uneven nosuch x", []),
    ):
        assert completed(monkeypatch, capsys, line) == found, line


def test_a_shell_outside_of_a_folder_with_runs_completes_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    assert completed(monkeypatch, capsys, "uneven report r") == []
    assert completed(monkeypatch, capsys, "uneven report 'r") == []  # a quote that is still open
