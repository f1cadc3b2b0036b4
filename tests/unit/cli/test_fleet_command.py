"""``uneven fleet``: a file is read, trained, and read wrongly."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import uneven.fleet as fleet
from uneven.cli import main
from uneven.errors import ConfigError, UnknownNameError
from uneven.fleet import ensemble_file
from uneven.fleet.engine.fleet_state import MemberState, RunState
from uneven.fleet.pure.converge import Epoch
from uneven.runtime.jobs.processes import import_path
from uneven_bench.forked.scripts import run_script

TESTS = Path(__file__).parents[2]
ENSEMBLE = """
[ensemble]
dataset = "fleet_members:few"
validate = "fleet_members:few"
transform = "fleet_members:jitter"
metric = "accuracy"
patience = 2
max_epochs = 1

[members]
small = "fleet_members:make"
wide = { factory = "fleet_members:make", width = 64, batch_size = 20 }
"""


@pytest.mark.rest
def test_a_described_ensemble_is_trained_and_who_failed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "two.toml").write_text(ENSEMBLE + 'broken = "fleet_members:raises"\n')
    command = ["-m", "uneven", "fleet", "run", "two.toml", "--devices", "2", "--report", "two.html"]
    path = os.pathsep.join([str(TESTS), import_path()])
    done = run_script(command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}, timeout_s=100)
    assert done.returncode == 1, done.stderr
    assert {line.split()[1] for line in done.stdout.splitlines()[1:]} == {"small", "wide", "broken"}
    told = done.stderr[done.stderr.index("error: 1 of 3 members failed") :]
    assert "  broken: Traceback" in told
    assert "ValueError: this factory is broken" in told
    for folder in ("00-small", "01-wide"):
        assert f": runs/two/members/{folder}/00001.pt" in told
    assert (tmp_path / "runs" / "two" / "state.json").exists()
    assert "The plan over time" in (tmp_path / "two.html").read_text()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(["fleet", "show", "two.toml", "--format", "json"])
    assert ended.value.code == 0
    shown = json.loads(capsys.readouterr().out)
    assert {row["name"]: row["status"] for row in shown["members"]} == {
        "small": "trained", "wide": "trained", "broken": "failed",
    }  # fmt: skip
    with pytest.raises(SystemExit) as ended:
        main(["fleet", "show", "two.toml", "--run-dir", "elsewhere"])
    assert ended.value.code == 2
    assert "start one with `uneven fleet run two.toml`" in capsys.readouterr().err


def test_the_exit_code_tells_trained_from_failed_from_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "two.toml").write_text(ENSEMBLE)
    monkeypatch.chdir(tmp_path)
    asked = ensemble_file.read(tmp_path / "two.toml")
    given: list[fleet.Options] = []

    def code(small: str, wide: str, *words: str, stopped: bool = False) -> object:
        done = [Epoch(train_loss=1.0, metric=0.5)]
        members = {name: MemberState(status, f"as {name}", done) for name, status in (("small", small), ("wide", wide))}

        def train(*_: object, options: fleet.Options, **__: object) -> fleet.Result:
            given.append(options)
            if stopped:
                raise KeyboardInterrupt
            return fleet.Result(asked, RunState({}, members=members), Path("there"))

        monkeypatch.setattr(fleet, "train", train)
        with pytest.raises(SystemExit) as ended:
            main(["fleet", "run", "two.toml", *words])
        return ended.value.code

    assert code("trained", "trained", "--step-timeout", "7") == 0
    assert given[0].timeout_s == 7.0
    assert capfd.readouterr().err == ""
    assert code("trained", "failed") == 1
    told = capfd.readouterr().err.splitlines()
    assert told[0].startswith("error: 1 of 2 members failed")
    assert told[1:] == ["  wide: as wide", "the others are trained; their best weights:",
                        "  small: there/members/00-small/00001.pt"]  # fmt: skip
    assert code("failed", "failed") == 1
    assert "the others" not in capfd.readouterr().err
    assert code("trained", "trained", stopped=True) == 130
    assert "the same command continues after the last finished pass" in capfd.readouterr().err
    assert code("trained", "trained", "--step-timeout", "0.1") == 2
    assert "timeout_s=0.1: give at least 1 s" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("change", "kind", "complaint"),
    [
        (("[members]", "[member]"), UnknownNameError, "did you mean 'members'"),
        (("max_epochs", "max_epoch"), UnknownNameError, "did you mean 'max_epochs'"),
        (("max_epochs = 1", "max_epochs = true"), ConfigError, "max_epochs: True is true or false; it must be a"),
        (('"accuracy"', '"acuracy"'), UnknownNameError, "did you mean 'accuracy'"),
        (("fleet_members:few", "nowhere_at_all:few"), ConfigError, "no module 'nowhere_at_all'"),
        (("fleet_members:jitter", "fleet_members:gone"), ConfigError, "has no 'gone'"),
        (("fleet_members:jitter", "jitter"), ConfigError, 'write "module:name"'),
        (("factory = ", "maker = "), ConfigError, "a table with the key factory"),
        (('dataset = "fleet_members:few"', ""), ConfigError, "has no dataset"),
        (("[ensemble]", "[ensemble"), ConfigError, r"two\.toml is not TOML: .*line 2"),
        (("[ensemble]", "ensemble = 3\n[other]"), ConfigError, "ensemble is 3: give a table"),
        (("fleet_members:jitter", "fleet_members:NUMBER"), ConfigError, "transform is 3: give a function"),
        (("patience = 2", "patience = 0"), ConfigError, "give at least 1, and at least 0"),
        (('fleet_members:make"', 'fleet_members:NUMBER"'), ConfigError, "member 'small': fleet_members:NUMBER is 3"),
        (('metric = "accuracy"', "metric = []"), ConfigError, r"metric: \[\] is a list; it must be a text"),
        (("fleet_members:jitter", ".x:y"), ConfigError, r"transform: it is '\.x:y': write \"module:name\""),
        (("fleet_members:jitter", "a\\u0000b:y"), ConfigError, r"transform: it is .*: write \"module:name\""),
        (("fleet_members:jitter", f"{'n' * 300}:y"), ConfigError, "transform: no module 'n+"),
        (("max_epochs = 1", f"max_epochs = 1{'0' * 400}"), ConfigError, "max_epochs: an integer of more than 64"),
        (("width = 64", "widht = 64"), ConfigError, "member 'wide': .*make cannot be called with the keys .*'widht'"),
        (('dataset = "fleet_members:few"', 'dataset = "fleet_members:jitter"'), ConfigError, "dataset: .*missing a re"),
        (('"fleet_members:make"', "7"), ConfigError, "member 'small': it is 7: give"),
    ],
)
def test_what_is_wrong_is_named(change: tuple[str, str], kind: type[Exception], complaint: str, tmp_path: Path) -> None:
    path = tmp_path / "two.toml"
    path.write_text(ENSEMBLE.replace(*change))
    with pytest.raises(kind, match=complaint):
        ensemble_file.read(path)


def test_what_goes_wrong_inside_a_module_is_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "unfinished_members.py").write_text("import math\nmath.nothing\n")
    (tmp_path / "two.toml").write_text(ENSEMBLE.replace("fleet_members:few", "unfinished_members:few"))
    with pytest.raises(AttributeError, match="module 'math' has no attribute 'nothing'"):
        ensemble_file.read(tmp_path / "two.toml")


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no file .*two\.toml: give the path of a TOML file"):
        ensemble_file.read(tmp_path / "two.toml")
    with pytest.raises(ConfigError, match=r"cannot read .*: Is a directory"):
        ensemble_file.read(tmp_path)
    (tmp_path / "two.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"two\.toml is not TOML: byte 0xff in line 1 is not UTF-8"):
        ensemble_file.read(tmp_path / "two.toml")
