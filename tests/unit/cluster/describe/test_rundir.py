from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest

from uneven.errors import ConfigError, ConflictError, JournalError, UnknownNameError
from uneven.policy.core.run_config import merge
from uneven.runtime import rundir


def test_layers_come_back_strongest_first(tmp_path: Path) -> None:
    layers = {
        "command line": {"balance": "static:shares=0.6/0.4", "timeout_s": 9.5, "keep_freed_memory": False},
        'a "quoted" \\ file.toml': {"seed": 7, "sync": "bsp"},
        "nothing said here": {},
    }
    rundir.create(tmp_path / "runs" / "one", layers)
    back = rundir.load_layers(tmp_path / "runs" / "one")
    assert list(back.items()) == list(layers.items())[:2]


def test_no_layers(tmp_path: Path) -> None:
    rundir.create(tmp_path / "run", {"command line": {}})
    assert rundir.load_layers(tmp_path / "run") == {}
    assert rundir.load_layers(tmp_path) == {}  # a directory that only holds a journal


def test_without_a_launcher_the_file_in_the_working_directory_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert rundir.load_layers(None) == {}
    Path("uneven.toml").write_text('[run]\nbalance = "even"\n')
    assert rundir.load_layers(None) == {"uneven.toml": {"balance": "even"}}


def test_errors_name_the_file(tmp_path: Path) -> None:
    rundir.create(tmp_path / "run", {"command line": {"seed": 1}})
    with pytest.raises(ConfigError, match=r"run already has a run.*--run-dir"):
        rundir.create(tmp_path / "run", {})
    with pytest.raises(UnknownNameError, match="'sed'; did you mean 'seed'"):
        rundir.create(tmp_path / "other", {"command line": {"sed": 1}})
    assert not (tmp_path / "other").exists()
    (tmp_path / "some.toml").touch()
    with pytest.raises(UnknownNameError, match=r"none\.toml.*did you mean .*some\.toml"):
        rundir.file_layer(tmp_path / "none.toml")
    (tmp_path / "run" / "run.toml").write_text("[[layer")
    with pytest.raises(ConfigError, match=r"run\.toml"):
        rundir.load_layers(tmp_path / "run")
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="or is a file"):
        rundir.create(tmp_path / "file", {})


def test_new_directories_are_named_after_time_and_target(tmp_path: Path) -> None:
    now = datetime(2026, 1, 2, 3, 4, 5)
    first = rundir.new_path("some/where/train.py", now, tmp_path)
    assert first == tmp_path / "2026-01-02-030405-train"
    first.mkdir()
    assert rundir.new_path("train.py", now, tmp_path).name == "2026-01-02-030405-train-2"
    assert rundir.new_path("package.module", now, tmp_path).name == "2026-01-02-030405-module"


@pytest.mark.parametrize(
    ("target", "name"),
    [("scripts/train", "train"), ("v1.2/train", "train"), ("./train", "train"), ("tr\x1b[31main.py", "tr_31main")],
)
def test_a_run_directory_lies_beside_the_others_whatever_the_script_is_called(target: str, name: str) -> None:
    now = datetime(2026, 1, 2, 3, 4, 5)
    assert rundir.new_path(target, now, Path("runs")) == Path("runs", f"2026-01-02-030405-{name}")


def test_ready_marks(tmp_path: Path) -> None:
    rundir.mark_ready(tmp_path, 1)
    assert rundir.is_ready(tmp_path, 1)
    assert not rundir.is_ready(tmp_path, 0)


def test_machines_of_one_run_share_a_directory(tmp_path: Path) -> None:
    layers = {"command line": {"balance": "even"}}
    for _ in range(3):  # whoever comes first makes it
        rundir.create(tmp_path / "run", layers, shared=True)
    assert rundir.load_layers(tmp_path / "run") == layers
    with pytest.raises(ConflictError, match=r"(?s)other settings.*even.*this machine has.*\(none\)"):
        rundir.create(tmp_path / "run", {}, shared=True)
    (tmp_path / "run" / "journal").mkdir()  # workers have been there: this is an older run
    with pytest.raises(ConfigError, match="already has a run"):
        rundir.create(tmp_path / "run", layers, shared=True)
    rundir.create(tmp_path / "run", layers, joins=True)
    with pytest.raises(ConflictError, match="other settings"):
        rundir.create(tmp_path / "run", {}, joins=True)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (b"[run]\nseed = 1 # \xff", r"uneven\.toml is not TOML: byte 0xff in line 2 is not UTF-8: save"),
        (b"run = 3", r"uneven\.toml: \[run\]: 3 is of type int; it must be a table"),
        (b"[[run]]\nseed = 1", r"uneven\.toml: \[run\]: .* is a list; it must be a table"),
        (b"[run]\ntimeout_s = inf", r"timeout_s = inf: it must be positive, and at most 1,000,000 seconds"),
        (b"[run]\ntimeout_s = nan", r"timeout_s: nan is not a number"),
        (b"[run]\ntimeout_s = 1" + b"0" * 400, r"timeout_s: an integer of more than 64 bits"),
        (b"[run]\nseed = 1" + b"0" * 400, r"seed: an integer of more than 64 bits"),
        (b"[run]\nseed = 1" + b"0" * 5000, r"uneven\.toml is not TOML: a number in it has more than 4,300 digits"),
        (b"[run]\nseed = " + b"[" * 3000, r"uneven\.toml is not TOML: its brackets are nested too deeply"),
        (b"[run]\nthreads = 1_000_000_000", r"threads = 1000000000: it must be at least 1 and at most 1,000"),
        (b"[run]\nkeep_freed_memory = 1", r"keep_freed_memory: 1 is of type int; it must be true or false"),
        (b"[run]\nbalance = 3", r"\[run\]: balance: 3 is of type int; it must be a text in quotation marks"),
    ],
)
def test_settings_that_cannot_be_are_refused_in_words(
    text: bytes, complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("uneven.toml").write_bytes(text)
    with pytest.raises(ConfigError, match=complaint):
        merge(rundir.load_layers(None))


@pytest.mark.parametrize("balance", ["lb-bsp\n", "a\x00b\x7f\u2028", '"\\'])
def test_whatever_a_text_holds_comes_back(balance: str, tmp_path: Path) -> None:
    rundir.create(tmp_path / "run", {"command line": {"balance": balance}})
    assert rundir.load_layers(tmp_path / "run") == {"command line": {"balance": balance}}


def test_a_name_that_is_not_utf8_does_not_break_the_settings(tmp_path: Path) -> None:
    rundir.create(tmp_path / "run", {"odd\udcff.toml": {"seed": 1}})
    assert rundir.load_layers(tmp_path / "run") == {"odd\\udcff.toml": {"seed": 1}}
    with pytest.raises(ConfigError, match="balance: 'lb\\\\udcff' has a character that UTF-8 cannot encode"):
        rundir.create(tmp_path / "other", {"command line": {"balance": "lb\udcff"}})


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[[layer]]\nsource = 'x'", r"run\.toml: the key 'run' is missing"),
        ("[[layer]]\nsource = []\n[layer.run]", r"run\.toml: \[\] is a list; it must be a text"),
        ("layer = 3", r"run\.toml: 3 is of type int; it must be a list"),
        ("layers = 3", r"run\.toml: unknown key 'layers'; did you mean 'layer'"),
    ],
)
def test_a_broken_run_directory_is_told(text: str, complaint: str, tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(text)
    with pytest.raises(ConfigError, match=complaint):
        rundir.load_layers(tmp_path)


def test_any_name_makes_a_run_directory(tmp_path: Path) -> None:
    for name in ("n" * 300, "東" * 300, "a\x00b", "with/slash"):
        path = rundir.new_path(name, datetime.now(), tmp_path)
        assert path.parent == tmp_path
        rundir.create(path, {})


def test_paths_that_no_file_system_takes_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path / ("n" * 300), tmp_path / ("d/" * 2100)):
        for use in (rundir.file_layer, rundir.load_layers, lambda path: rundir.create(path, {})):
            with pytest.raises(JournalError, match="File name too long"):
                use(path)
    with pytest.raises(JournalError, match="cannot hold the character NUL"):
        rundir.create(tmp_path / "a\x00b", {})
