"""Workers of an emulated cluster are killed, join and leave in one run, and no sample is lost or used twice."""

from __future__ import annotations

from pathlib import Path

import pytest
from emulation import WHY_NOT, cluster, emulate
from test_elastic import HERE, check, steps

from uneven import journal
from uneven.policy.core.records import EventRecord, MembershipRecord, RunRecord, StepRecord

pytestmark = pytest.mark.timeout(300)

NODES = """
nodes = [{ name = "goes" }, { name = "dies" }, { name = "comes" }]

[[events]]
do = "kill"
node = "dies"
at_iteration = 4

[[events]]
do = "join"
node = "comes"
at_iteration = 6

[[events]]
do = "leave"
node = "goes"
at_iteration = 30
"""


def test_killed_joined_and_left_as_the_description_says(tmp_path: Path) -> None:
    """All wait at iteration 10 until somebody asks to join, and train until worker 0 was told to leave."""
    worker = [str(HERE / "elastic_script.py"), str(tmp_path), "2", "0", "door@10", "until@0"]
    means = ["--unprivileged"] if WHY_NOT else []
    done = emulate(tmp_path, cluster(tmp_path, NODES), *means, "--elastic", "1:3", "--", *worker)
    assert done.returncode == 0, done.stderr
    check(tmp_path, 1 + max(epoch for epoch, _ in steps(tmp_path)), {2})
    assert "rank 1 (dies, process" in done.stderr
    assert "cluster 'test': event in iteration 4" in done.stderr
    assert "worker 0 got a request to leave" in done.stderr
    assert "1 of its workers was lost" in done.stderr
    read = journal.read(tmp_path / "run")
    starts = [one for records in read.ranks.values() for one in records[:1] if isinstance(one, RunRecord)]
    assert [one.host for one in starts] == ["goes", "dies", "comes"]
    records = list(read.records())
    told = [(one.rank, one.event) for one in records if isinstance(one, EventRecord) and one.event in ("kill", "leave")]
    assert told == [(0, "leave"), (1, "kill")]
    seen = [(one.rank, one.left, one.came) for one in records if isinstance(one, MembershipRecord)]
    assert seen == [(0, (1,), ()), (0, (), (2,)), (2, (0,), ())]
    counted = {one.iteration: one.global_batch for one in records if isinstance(one, StepRecord) and one.rank != 1}
    assert counted == {iteration: len(ids) for (_, iteration), ids in steps(tmp_path).items()}
    assert counted[10] < 24, "the one that died was waiting in it"
    assert [one.iteration for one in journal.iterations(records)] == list(counted)


def test_nobody_is_left(tmp_path: Path) -> None:
    nodes = 'nodes = [{ name = "a" }]\n[[events]]\ndo = "kill"\nnode = "a"\nat_s = 0.2\n'
    script = tmp_path / "waits.py"
    script.write_text(
        "import os, time\nfrom pathlib import Path\nfrom uneven.runtime import rundir\n"
        "rundir.mark_ready(Path(os.environ['UNEVEN_RUN']), 0)\ntime.sleep(100)\n"
    )
    done = emulate(tmp_path, cluster(tmp_path, nodes), "--unprivileged", "--elastic", "1:1", "--", str(script))
    assert done.returncode == 137, done.stderr
    assert "cluster 'test': event at 0.2 s" in done.stderr
