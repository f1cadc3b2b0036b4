"""``uneven run`` says so when a script took no part in balancing."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer

from uneven.cli import application, main
from uneven.cli.run import ends_with_a_line, hint, misplaced
from uneven.errors import LaunchError
from uneven.journal import rank_path
from uneven_bench.forked.scripts import run_script

SILENT = "print('hello')\n"
TAKES_PART = "import uneven\nuneven.Session().close()\n"


@pytest.mark.parametrize(("script", "told"), [(SILENT, True), (TAKES_PART, False)])
def test_a_script_without_a_session_is_told(script: str, told: bool, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(script)
    done = run_script(
        ["-m", "uneven_bench.forked.run", "run", "--run_dir", "my run", "train.py"], cwd=tmp_path, timeout_s=100
    )
    assert done.returncode == 0, done.stderr
    assert ("the script made no uneven.Session()" in done.stderr) is told
    assert "`uneven watch 'my run'`" in done.stderr
    assert ("→ uneven watch 'my run'\n" in done.stderr) is not told


@pytest.mark.parametrize("fails", [False, True])
def test_a_journal_that_cannot_be_read_is_said_in_one_line_and_fails_no_run(
    fails: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A failed run keeps its own error."""
    path = rank_path(tmp_path, 0)
    path.parent.mkdir()
    path.write_text('{"schema": 99, "kind": "run"}\n')
    with ExitStack() as stack:
        if fails:
            stack.enter_context(pytest.raises(LaunchError, match="its own"))
        with ends_with_a_line(tmp_path):
            if fails:
                raise LaunchError("its own")
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith(f"uneven: the run cannot be summed up: {path}, line 1: ")


@pytest.mark.parametrize(
    ("arguments", "script", "found"),
    [
        (["--nproc", "4"], "", ["--nproc"]),
        (["data", "--nproc_per_node=4", "--nproc-per-node=2"], "", ["--nproc-per-node"]),
        (["--seed", "1", "--shares", ".5,.5"], 'parser.add_argument("--seed", type=int)', ["--shares"]),
        (["--node-rank", "1"], "class Options:\n    node_rank: int = 0", []),
        (["--seed", "1"], "unseeded = 1", ["--seed"]),
        (["--", "--nproc", "4"], "", []),
        (["--epochs", "4", "--nprocs"], "", []),
    ],
)
def test_options_that_look_like_ours(arguments: list[str], script: str, found: list[str]) -> None:
    ours = {"--nproc", "--nproc-per-node", "--seed", "--shares", "--node-rank"}
    assert misplaced(arguments, ours, script) == found


def test_a_hint_names_all_of_them() -> None:
    assert hint(["--seed", "--nproc"], "t.py") == (
        "--seed, --nproc after t.py are arguments of the script: to pass them to uneven, put them before t.py"
    )


@pytest.mark.parametrize("keep", ["--keep-freed-memory", "--no-keep-freed-memory"])
def test_workers_of_ray_get_options_that_uneven_run_has(
    keep: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[list[str]] = []

    class Lines:
        def __init__(self, line: Callable[[int], list[str]], *_: object, **__: object) -> None:
            lines.append(line(0))

        def close(self) -> None:
            pass

    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "uneven.runtime.jobs.ray_lines", SimpleNamespace(RayLines=Lines))
    monkeypatch.setattr("uneven.cli.run.need", lambda *_: None)
    monkeypatch.setattr("uneven.cli.run.launch.run", lambda *_, **__: None)
    Path("train.py").touch()
    words = ["--nproc", "1", "--elastic", "1:4", "--rdzv-endpoint", "127.0.0.1:29500", "--ray", "2"]
    with pytest.raises(SystemExit) as end:
        main(["run", *words, "--overhead-budget", "0.01", "--seed", "3", keep, "train.py"])
    assert not end.value.code
    command: Any = typer.main.get_command(application(["run"]))
    got = command.commands["run"].make_context("run", lines[0][4:]).params
    assert (got["budget"], got["seed"], got["keep_freed_memory"]) == (0.01, 3, keep == "--keep-freed-memory")
