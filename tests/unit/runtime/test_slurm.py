"""What ``srun`` tells its tasks, read as torchrun's variables."""

from __future__ import annotations

import pytest

from uneven.errors import ConfigError
from uneven.runtime.slurm import as_torchrun, first_node, tasks_per_node
from uneven.runtime.world import World, discover

STEP = {
    "SLURM_JOB_ID": "200505",
    "SLURM_STEP_ID": "2",
    "SLURM_STEP_NUM_TASKS": "7",
    "SLURM_STEP_NODELIST": "gnode[10,20-21],login",
    "SLURM_STEP_TASKS_PER_NODE": "2(x3),1",
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "2",
}


def test_a_task_of_a_step() -> None:
    world = discover(STEP)
    assert (world.rank, world.size, world.local_rank, world.local_size) == (5, 7, 1, 2)
    assert (world.meeting, world.port, world.stored) == ("gnode10", 29500 + (64 * 200505 + 2) % 3000, False)
    last = discover(STEP | {"SLURM_PROCID": "6", "SLURM_NODEID": "3", "SLURM_LOCALID": "0"})
    assert (last.rank, last.local_size, last.port) == (6, 1, world.port)
    other = discover(STEP | {"SLURM_STEP_ID": "3"})
    assert other.port != world.port


def test_what_else_says_where_to_meet_counts_more() -> None:
    named = discover(STEP | {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "4000"})
    assert (named.meeting, named.port, named.rank) == ("10.0.0.1", 4000, 5)
    torchrun = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
    assert discover(STEP | torchrun).size == 2


@pytest.mark.parametrize(
    "env",
    [
        {"SLURM_JOB_ID": "1", "SLURM_NTASKS": "8", "SLURM_PROCID": "0", "SLURM_NODEID": "0"},  # of a batch script
        STEP | {"SLURM_STEP_NUM_TASKS": "1"},
    ],
)
def test_who_is_alone(env: dict[str, str]) -> None:
    assert as_torchrun(env) == {}
    assert discover(env).alone
    assert discover(env).meeting == World().meeting


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("tux", "tux"),
        ("tux007,tux3", "tux007"),
        ("tux[007-009,12],login", "tux007"),
        ("rack[2-3]node[4,5-6]", "rack2node4"),
        ("a-b[1]-c.example,d", "a-b1-c.example"),
    ],
)
def test_first_nodes(nodes: str, first: str) -> None:
    assert first_node(nodes) == first


def test_counts_of_tasks() -> None:
    assert tasks_per_node("2(x3),1") == [2, 2, 2, 1]
    assert tasks_per_node("12") == [12]
    with pytest.raises(ConfigError, match=r"SLURM_STEP_TASKS_PER_NODE='2x3' is not in Slurm's format"):
        tasks_per_node("2x3")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"SLURM_PROCID": ""}, "SLURM_PROCID is not set: start the script with srun, or unset SLURM_STEP_NUM_TASKS"),
        ({"SLURM_PROCID": "five"}, "SLURM_PROCID='five' is not a whole number"),
        ({"SLURM_NODEID": "4"}, r"SLURM_NODEID=4, but SLURM_STEP_TASKS_PER_NODE='2\(x3\),1' has 4 nodes"),
        ({"SLURM_PROCID": "7"}, "RANK=7 does not fit WORLD_SIZE=7"),
    ],
)
def test_what_does_not_fit(change: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        discover(STEP | change)
