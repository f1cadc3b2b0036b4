from __future__ import annotations

from pathlib import Path

import pytest

from uneven.cli.run import layers_of, parse_shares
from uneven.errors import ConfigError, UnknownNameError
from uneven.launch import Launch, local, start


@pytest.fixture
def script(tmp_path: Path) -> str:
    (tmp_path / "train.py").touch()
    return str(tmp_path / "train.py")


def test_a_run_on_one_machine_needs_no_address(script: str) -> None:
    assert Launch(target=(script,)).alone
    assert Launch(target=(script,), standalone=True, master_port=1).alone
    assert not Launch(target=(script,), master_port=29501).alone
    assert not Launch(target=(script,), rdzv_endpoint="127.0.0.1:29501").alone
    assert not Launch(target=(script,), nnodes="1:2").alone
    assert Launch(target=(script,), nnodes="2:4").nodes == (2, 4)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"nproc": "0"}, r"--nproc-per-node 0: .*positive"),
        ({"nproc": "7" * 5000}, r"it must be a positive number of at most 100,000, or gpu"),
        ({"nproc": "1000000000000"}, r"--nproc-per-node 1000000000000: .*at most 100,000"),
        ({"target": ("n" * 300,)}, r"cannot look for the script n+: File name too long"),
        ({"nproc": "for"}, r"--nproc-per-node for: .*gpu, cpu or auto"),
        ({"nproc": "3", "shares": (0.5, 0.5)}, r"--nproc-per-node 3 with 2 shares"),
        ({"shares": (0.5, -1.0)}, r"share = -1\.0"),
        ({"max_restarts": -1}, r"--max-restarts -1"),
        ({"nnodes": "x"}, r"--nnodes x"),
        ({"nnodes": "4:2"}, r"as in 2:4"),
        ({"nnodes": "2", "node_rank": 2}, r"--node-rank 2 with --nnodes 2: count from 0 to 1"),
        ({"nnodes": "2", "standalone": True}, r"--standalone is for one machine"),
        ({"rdzv_backend": "c10"}, r"--rdzv-backend 'c10'; did you mean 'c10d'"),
        ({"target": ()}, "nothing to run"),
    ],
)
def test_values_that_cannot_be(script: str, values: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Launch(**{"target": (script,), **values})  # type: ignore[arg-type]


def test_a_script_that_is_not_there(script: str) -> None:
    with pytest.raises(UnknownNameError, match=r"trian\.py'; did you mean '.*train\.py'"):
        Launch(target=(str(Path(script).with_name("trian.py")),))
    Launch(target=("no.such.module",), module=True)  # only Python knows, and says so
    with pytest.raises(UnknownNameError):
        local(["nowhere.py"], 2)
    with pytest.raises(ConfigError, match="wait_ready needs a run_directory"):
        start(Launch(target=(script,), wait_ready=True))


def test_names_are_checked_before_anything_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnknownNameError, match="'bps'; did you mean 'bsp'"):
        layers_of({"sync": "bps"}, None)
    with pytest.raises(UnknownNameError, match="unknown balancer 'lb-bps'"):
        layers_of({"balance": "lb-bps"}, None)
    with pytest.raises(ConfigError, match="budget = 2"):
        layers_of({"budget": 2.0}, None)
    Path("my.toml").write_text('[run]\nsync = "bps"\n')
    with pytest.raises(UnknownNameError, match="'bps'"):
        layers_of({}, Path("my.toml"))


def test_layers_stay_apart_and_conflicts_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("uneven.toml").write_text("[run]\nseed = 2\nbudget = 0.01\n")
    layers = layers_of({"seed": 1, "sync": None}, None)
    assert layers == {"command line": {"seed": 1}, "uneven.toml": {"seed": 2, "budget": 0.01}}
    assert "seed: command line says 1, uneven.toml says 2; using 1" in capsys.readouterr().err


def test_shares_as_typed() -> None:
    assert parse_shares("0.6, 0.4,0.2") == (0.6, 0.4, 0.2)
    assert parse_shares(None) == ()
    with pytest.raises(ConfigError, match=r"--shares 0\.6,x"):
        parse_shares("0.6,x")
