"""The command line as a user meets it: real processes, their output and exit codes."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from uneven.cli import main
from uneven.cli.commands import COMMANDS, EXAMPLES, CliCommand, found
from uneven.errors import ConfigError, LaunchError, UnevenError
from uneven_bench.forked.scripts import run_script


def uneven(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own."""
    command = [sys.executable, "-m", "uneven", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_help_teaches() -> None:
    done = uneven("--help")
    assert done.returncode == 0
    for command in COMMANDS.values():
        assert f"{command.name}  " in done.stdout
        assert command.short.split(",")[0] in done.stdout
    for line in filter(None, EXAMPLES.splitlines()):
        assert line in done.stdout


def test_every_example_starts_with_a_command_that_exists() -> None:
    shown = [line.split()[1] for line in EXAMPLES.splitlines() if line.startswith("  uneven ")]
    assert len(shown) >= 5
    assert set(shown) <= set(COMMANDS)


def test_help_loads_no_torch() -> None:
    code = (
        "import sys\nfrom uneven.cli import main\n"
        "for arguments in (['--help'], ['--version'], []):\n"
        "    try:\n        main(arguments)\n"
        "    except SystemExit:\n        print('loaded', 'torch' in sys.modules, 'rich' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    loaded = [line for line in done.stdout.splitlines() if line.startswith("loaded")]
    assert loaded == ["loaded False False"] * 3, done.stderr


@pytest.mark.parametrize("command", found().values(), ids=found())
def test_every_command_has_its_own_help(command: CliCommand, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.where is not None
    module, _, name = command.where.partition(":")
    with pytest.raises(SystemExit) as ended:
        main([command.name, "--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert f"Usage: uneven {command.name}" in text
    what = getattr(importlib.import_module(module), name)
    doc = what.info.help if isinstance(what, typer.Typer) else inspect.getdoc(what)
    assert doc is not None
    first_paragraph = doc.partition("\n\n")[0]
    assert " ".join(first_paragraph.split()) in " ".join(text.split())


def test_a_command_whose_package_is_missing_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("uneven.cli.commands.entry_points", lambda group: ())
    with pytest.raises(SystemExit) as ended:
        main(["bench", "lb-bsp", "--quick"])
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: uneven bench is not installed: pip install './benchmarks' in the folder")
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    assert COMMANDS["bench"].short in capsys.readouterr().out


def test_other_packages_add_commands_but_replace_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "more_commands.py").write_text("def greet(name: str) -> None:\n    print('hello', name)\n")
    about = tmp_path / "more-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: more\nVersion: 1.0\n")
    both = "[uneven.commands]\ngreet = more_commands:greet\ndoctor = more_commands:greet\n"
    (about / "entry_points.txt").write_text(both)
    monkeypatch.syspath_prepend(tmp_path)
    assert found()["doctor"] == COMMANDS["doctor"]
    for arguments, said in ((["greet", "you"], "hello you"), (["--help"], "greet         Comes with more.")):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert (ended.value.code, said in capsys.readouterr().out) == (0, True)


def test_help_keeps_the_line_breaks_of_examples_and_square_brackets(capsys: pytest.CaptureFixture[str]) -> None:
    shown = {("watch", "--help"): "\n    uneven watch runs/NAME ", ("run", "--help-all"): "[default: ./uneven.toml]"}
    for words, text in shown.items():
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert (ended.value.code, text in capsys.readouterr().out) == (0, True)


def test_version() -> None:
    import uneven as package

    done = uneven("--version")
    assert (done.returncode, done.stdout.strip()) == (0, f"uneven {package.__version__}")


def test_unknown_command_offers_the_nearest() -> None:
    done = uneven("reprot", "runs/x")
    assert done.returncode == 2
    assert "unknown command 'reprot'; did you mean 'report'?" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_wrong_word_is_in_the_message(capsys: pytest.CaptureFixture[str]) -> None:
    for words, said in (
        (["--versoin"], "error: No such option: --versoin; did you mean --version? (see `uneven "),
        (["doctor", "--fromat"], "error: No such option: --fromat; did you mean --format? (see `uneven "),
        (["nosuch"], "error: unknown command 'nosuch' (known: bench, "),
        (["run", "--seed", "abc", "x.py"], "error: --seed abc: Input should be a valid integer"),
        (["plan", "demo4", "--format", "yaml"], "error: --format yaml: 'yaml' is not one of 'text', 'json' (see `"),
        (["search", "stop", "runs/x", "y"], "error: TRIAL y: Input should be a valid integer"),
    ):
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code == 2
        assert capsys.readouterr().err.startswith(said)


def test_an_error_shows_the_lines_of_the_user_and_with_a_variable_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A factory that the file of an ensemble names calls uneven in a wrong way."""
    (tmp_path / "broken_members.py").write_text(
        "import uneven.policy.balance\n\ndef few():\n    return uneven.policy.balance.balancers.resolve('evn')\n"
    )
    file = "[ensemble]\ndataset = 'broken_members:few'\nmetric = 'loss'\n[members]\na = 'json:JSONDecoder'\n"
    (tmp_path / "e.toml").write_text(file)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    said = {}
    for variable in ("0", "1"):
        monkeypatch.setenv("UNEVEN_TRACEBACK", variable)
        with pytest.raises(SystemExit) as ended:
            main(["fleet", "run", "e.toml"])
        assert ended.value.code == 2
        said[variable] = capsys.readouterr().err
    assert said["0"].count("unknown balancer 'evn'") == said["1"].count("Error: ") == 1
    place, line, *_, message = said["0"].splitlines()
    assert place.endswith('broken_members.py", line 4, in few')
    assert line.strip() == "return uneven.policy.balance.balancers.resolve('evn')"
    assert message.startswith("error: ")
    assert "registry.py" in said["1"]
    assert said["1"].startswith("Traceback")


@pytest.mark.parametrize(
    ("error", "code"), [(ConfigError("seed = -1: no"), 2), (LaunchError("rank 1 died", exit_code=7), 7)]
)
def test_own_errors_become_one_message_and_a_code(
    error: UnevenError, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails() -> None:
        raise error

    monkeypatch.setattr("uneven.cli.doctor.doctor", fails)
    with pytest.raises(SystemExit) as ended:
        main(["doctor"])
    assert ended.value.code == code
    *lines, message = capsys.readouterr().err.splitlines()
    assert message == f"error: {error}"
    assert "in fails" in lines[0], "this file is not uneven's"


def test_foreign_errors_keep_their_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> None:
        raise KeyError("a bug")

    monkeypatch.setattr("uneven.cli.doctor.doctor", fails)
    with pytest.raises(KeyError, match="a bug"):
        main(["doctor"])


def test_script_arguments_pass_untouched(tmp_path: Path) -> None:
    """What follows the script is the script's, also what looks like an option of ours."""
    script = tmp_path / "show.py"
    script.write_text("import sys; print('got', sys.argv[1:])")
    for_script = ["--nproc", "9", "-h", "--balance=x", "--", "-m", "--", "a b", ""]
    command = ["-m", "uneven_bench.forked.run", "run", "--nproc", 1, "--run-dir", tmp_path / "run", script, *for_script]
    done = run_script(command)
    assert done.returncode == 0, done.stderr
    assert f"got {for_script}" in done.stdout
