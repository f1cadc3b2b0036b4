from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from uneven.cli.run import layers_of, parse_shares, refuse_misfits
from uneven.errors import ConfigError, UnknownNameError
from uneven.policy.core.run_config import RunConfig, merge
from uneven.run.start.connect import identity
from uneven.runtime.launch import Launch, WorkerOutput, start
from uneven.runtime.launch.preflight import check


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
        ({"elastic": "1:2", "output": WorkerOutput(ranks="0")}, "--log-rank and --log-dir do not work with"),
    ],
)
def test_values_that_cannot_be(script: str, values: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Launch(**{"target": (script,), **values})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"redirects": "4"}, "--redirects 4: give 1 for stdout"),
        ({"tee": "0:1;1:2"}, "--tee 0:1;1:2: "),
        ({"redirects": ""}, "--redirects : "),
        ({"ranks": "first"}, "--log-rank first: give local ranks"),
    ],
)
def test_outputs_that_cannot_be(values: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        WorkerOutput(**values)


def test_outputs_by_local_rank(tmp_path: Path) -> None:
    output = WorkerOutput(redirects="0:1,1:2", tee="3", ranks="0,2")
    assert output.streams(3) == ({0: 1, 1: 2, 2: 0}, {0: 3, 1: 3, 2: 3})
    assert (output.shown, output.in_files) == ({0, 2}, True)
    output.check(3)
    with pytest.raises(ConfigError, match="--log-rank names local rank 2, but this machine has 2 workers"):
        output.check(2)
    assert not WorkerOutput(ranks="0", redirects="0:0").in_files
    assert output.folder(tmp_path) == tmp_path / "logs"
    assert WorkerOutput(directory="here").folder(None) == Path("here")
    with pytest.raises(ConfigError, match="name one with --log-dir"):
        output.folder(None)


@pytest.mark.parametrize("address", ["240.0.0.1", "no-such-machine.invalid"])
def test_a_local_address_that_does_not_lead_here(script: str, address: str) -> None:
    between_machines = {"nnodes": "2", "rdzv_backend": "c10d", "rdzv_endpoint": "127.0.0.1:29517"}
    for more in ({}, between_machines):
        start = Launch(target=(script,), local_addr=address, **more)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match=f"--local-addr {address} is not an address of this machine"):
            check(start)
    check(Launch(target=(script,), local_addr="127.0.0.1"))


def test_one_machine_meets_where_nobody_else_gets(script: str) -> None:
    def here(**values: Any) -> tuple[str, int] | None:
        return Launch(target=(script,), **values).here

    assert here() == ("127.0.0.1", 0)
    assert here(local_addr="10.0.0.1") == ("10.0.0.1", 0), "told otherwise"
    assert here(master_port=29501) == ("127.0.0.1", 29501)
    assert here(rdzv_backend="c10d", rdzv_endpoint="[::1]:29501") == ("::1", 29501)
    assert here(rdzv_endpoint="10.0.0.1:29501") is None
    assert here(nnodes="1:2", rdzv_endpoint="127.0.0.1:29501") is None, "another machine may come"


def test_a_script_that_is_not_there(script: str) -> None:
    with pytest.raises(ConfigError, match=r"no such file: .*/trian\.py; did you mean .*/train\.py\?$"):
        Launch(target=(str(Path(script).with_name("trian.py")),))
    with pytest.raises(ConfigError, match=r"no such file: .*/nosuch\.py$"):  # nor one that is called like it
        Launch(target=(str(Path(script).with_name("nosuch.py")),))
    Launch(target=("no.such.module",), module=True)  # only Python knows, and says so
    with pytest.raises(ConfigError, match="wait_ready needs a run_directory"):
        start(Launch(target=(script,), wait_ready=True))


def test_names_are_checked_before_anything_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnknownNameError, match="'bps'; did you mean 'bsp'"):
        layers_of({"sync": "bps"}, None)
    with pytest.raises(UnknownNameError, match="unknown balancer 'lb-bps'"):
        layers_of({"balance": "lb-bps"}, None)
    with pytest.raises(ConfigError, match="overhead_budget = 2"):
        layers_of({"overhead_budget": 2.0}, None)
    Path("my.toml").write_text('[run]\nsync = "bps"\n')
    with pytest.raises(UnknownNameError, match="'bps'"):
        layers_of({}, Path("my.toml"))


def test_layers_stay_apart_and_conflicts_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("uneven.toml").write_text("[run]\nseed = 2\noverhead_budget = 0.01\n")
    layers = layers_of({"seed": 1, "sync": None}, None)
    assert layers == {"command line": {"seed": 1}, "uneven.toml": {"seed": 2, "overhead_budget": 0.01}}
    assert "seed = 1 (command line) overrides 2 (uneven.toml)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("typed", "file", "workers", "message"),
    [
        ({"balance": "static:shares=2/1"}, {}, 3, "command line: .*is for 2 workers, and this run has 3"),
        ({"balance": "static:shares=2/1"}, {}, 1, "command line: .*is for 2 workers, and this run has 1"),
        ({}, {"balance": "static:shares=2/1"}, 3, "uneven.toml: .*is for 2 workers, and this run has 3"),
        ({"threads": 3, "sync": "bsp"}, {}, 2, "with threads = 3"),
        ({"threads": 3}, {"sync": "bsp"}, None, "with threads = 3"),
        ({"threads": 3, "balance": "lb-bsp"}, {}, 2, "'lb-bsp' with threads = 3"),
        ({"sync": "asp", "balance": "lb-bsp"}, {}, None, "has no effect under"),
        ({"sync": "backup", "balance": "lb-bsp"}, {}, None, "late workers"),
    ],
)
def test_what_does_not_go_together_is_found_before_anything_starts(
    typed: dict[str, object], file: dict[str, object], workers: int | None, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        refuse_misfits({"command line": typed, "uneven.toml": file}, workers)


@pytest.mark.parametrize(
    ("typed", "workers"),
    [
        ({"balance": "static:shares=2/1"}, 2),
        ({"balance": "static:shares=2/1"}, None),  # several machines: nobody knows here
        ({"threads": 3}, 2),  # the script may name a policy
        ({"threads": 3, "sync": "shadow:ma"}, 2),
        ({"threads": 3, "sync": "bsp"}, 1),
        ({"sync": "asp"}, 2),
        ({"balance": "static"}, 5),
    ],
)
def test_what_the_script_may_still_name_is_left_to_it(typed: dict[str, object], workers: int | None) -> None:
    refuse_misfits({"command line": typed}, workers)
    refuse_misfits({"uneven.toml": {"balance": "static:shares=2/1"}}, 1)  # its session says so and goes on


def test_what_is_switched_off_on_the_command_line_is_off(tmp_path: Path) -> None:
    (tmp_path / "uneven.toml").write_text("[run]\nkeep_freed_memory = true\n")
    layers = layers_of({"keep_freed_memory": False, "seed": None}, tmp_path / "uneven.toml")
    assert not merge(layers)[0].keep_freed_memory


def test_what_is_a_matter_of_one_machine_is_not_compared() -> None:
    here, there = RunConfig(), RunConfig(threads=4, keep_freed_memory=False)
    assert here != there
    assert identity(here) == identity(there) != identity(RunConfig(seed=1))


def test_shares_as_typed() -> None:
    assert parse_shares("0.6, 0.4,0.2") == (0.6, 0.4, 0.2)
    assert parse_shares(None) == ()
    with pytest.raises(ConfigError, match=r"--shares 0\.6,x"):
        parse_shares("0.6,x")
