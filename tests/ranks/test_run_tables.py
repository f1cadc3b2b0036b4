"""``uneven run --tables``: tables in processes of their own, for trainers of several threads, with S-EASGD."""

from __future__ import annotations

import gc
import os
import re
import signal
from pathlib import Path

import pytest
import torch

import uneven
from brought import brought, refusal
from uneven.embedding import EmbeddingBagCollection, EmbeddingCollection, Table
from uneven.embedding.shared_rows import can_share
from uneven.embedding.table_host import PROGRAM, TABLES
from uneven.errors import ConfigError
from uneven.journal import read
from uneven.runtime.messages.process import ShardKeeper
from uneven_bench.forked.scripts import run_script

SCRIPT = Path(__file__).with_name("tables_script.py")


def test_threads_of_two_trainers_share_tables_on_two_servers(tmp_path: Path) -> None:
    chosen = ["--nproc", "2", "--tables", "2", "--servers", "1", "--run-dir", tmp_path / "run"]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    run = ["-m", "uneven_bench.forked.run", "run"]
    done = run_script([*run, *chosen, SCRIPT], cwd=tmp_path, env=env, merged=True, timeout_s=120)
    assert done.returncode == 0, done.stdout
    found = re.findall(r"rank (\d) right (\S+) sum (\S+) applied (\d+) lookups (\d+)", done.stdout)
    assert sorted(one[0] for one in found) == ["0", "1"]
    assert float(found[0][1]) > 0.9  # half of them were, before it learnt
    assert found[0][2] == found[1][2], "both see the same tables when both have flushed"
    assert {int(one[3]) for one in found} == {192}  # 1,536 samples twice in batches of 32, each to two shards
    (event,) = [one for one in read(tmp_path / "run").records() if getattr(one, "event", "") == "tables"]
    assert "192 updates" in event.message
    for rank in "01":
        state = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        alone = EmbeddingBagCollection([Table(200, 8, "a"), Table(5000, 8, "b")], seed=9)
        alone.load_state_dict({key[7:]: one for key, one in state.items() if key.startswith("tables.")})
        assert f"{sum(float(one.double().sum()) for one in alone.to_state_dict().values()):.9f}" == found[0][2]
        alone.close()


def rows_in_memory() -> set[str]:
    """The shared memory of tables that this process has mapped, by its inode."""
    lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines() if can_share() else []
    return {one.split()[4] for one in lines if "memfd:uneven-" in one}


def test_a_killed_server_goes_on_from_what_it_saved_and_leaves_no_memory_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gc.collect()
    mapped = rows_in_memory()
    monkeypatch.setenv("UNEVEN_RUN", str(tmp_path))
    ids = torch.arange(40).view(20, 2)
    with ShardKeeper(tmp_path / TABLES, 1, 1, program=PROGRAM) as servers:
        tables = EmbeddingBagCollection([Table(100, 4, "a"), Table(100, 4, "b")], save_every_s=0.05)

        def train(steps: int) -> None:
            for _ in range(steps):
                tables(ids).values().square().sum().backward()
            tables.flush()

        train(10)
        while not tables.stats().counts["saved"]:
            train(1)
        lives = [one.life for one in tables.door.client._readers.values()]
        os.kill(servers.pids()[0], signal.SIGKILL)
        train(10)
        stats = tables.stats()
        assert (stats.restarts, stats.counts["restored"]) == (1, 1)
        if can_share():
            assert lives != [one.life for one in tables.door.client._readers.values()]
            gc.collect()
            assert len(rows_in_memory() - mapped) == 3, "state, region and rows of the last life"
        train(5)
        assert tables.stats().lost == stats.lost, "it was told once"
        before = tables.to_state_dict()
        tables.save_checkpoint(tmp_path / "saved")
        tables.close()
    gc.collect()
    assert rows_in_memory() == mapped
    monkeypatch.delenv("UNEVEN_RUN")
    again = EmbeddingBagCollection([Table(100, 4, "a"), Table(100, 4, "b")], seed=9)
    again.load_checkpoint(tmp_path / "saved")
    assert all(torch.equal(weight, before[key]) for key, weight in again.to_state_dict().items())
    again.close()


def test_several_workers_without_servers_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match="2 workers and no table servers"):
        EmbeddingBagCollection([Table(3, 4, "a")]).to_state_dict()


@pytest.mark.parametrize("tables", ["-1", "1001"])
def test_numbers_of_servers_that_cannot_be(tables: str, tmp_path: Path) -> None:
    from uneven.cli import main

    script = tmp_path / "nothing.py"
    script.touch()
    with pytest.raises(SystemExit) as ended:
        main(["run", "--nproc", "1", "--tables", tables, "--run-dir", str(tmp_path / "run"), str(script)])
    assert ended.value.code == 2
    assert not (tmp_path / "run").exists()


@pytest.mark.rest
@brought("tables", "TorchRec", "pooled and unpooled collections in one model, on servers", refused=True)
def test_two_collections_in_a_model_are_refused_on_servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNEVEN_RUN", str(tmp_path))
    pooled, rows = EmbeddingBagCollection([Table(9, 4, "a")]), EmbeddingCollection([Table(9, 4, "b")])
    with ShardKeeper(tmp_path / TABLES, 1, 1, program=PROGRAM), uneven.Session() as session:
        with refusal("2 collections of tables.*one EmbeddingCollection"):
            session.setup(torch.nn.ModuleList([pooled, rows]))
        with pytest.raises(ConfigError, match="2 collections of tables"):
            rows.flush()  # a script without a session, too
        for one in (pooled, rows):
            one.close()
