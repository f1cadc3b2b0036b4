"""The short form of ``uneven bench faults``: one real run for each way in which something can go wrong.

Each ends as :func:`uneven_bench.faults.cases.expected` says, with nothing left over, and where it had written a
checkpoint, other workers go on from that and use every sample once. Workers that were stopped by a signal are in
``test_launch`` and ``test_run_deaths``: half a minute goes by until one counts as missing.
"""

from __future__ import annotations

from typing import Any

import pytest

from uneven_bench.faults.cases import FaultCase
from uneven_bench.faults.play import play
from uneven_bench.harness.faulty import play_all

pytestmark = pytest.mark.timeout(300)


def case(kind: str, moment: str, step: int = 1, **more: Any) -> FaultCase:
    usual: dict[str, Any] = {"sync": "bsp", "balance": "even", "workers": 2, "servers": 0, "rank": 1, "save_every": 0,
                             "ahead": False, "resumed": 2}  # fmt: skip
    return FaultCase(seed=0, number=0, kind=kind, moment=moment, step=step, **(usual | more))


CASES: dict[str, FaultCase] = {
    "killed in the middle of an epoch": case(
        "kill", "forward", 14, workers=3, balance="lb-bsp", save_every=2, resumed=5
    ),
    "the data set raises": case("raise", "batch", 12, sync="local:every=3", rank=0, resumed=3),
    "exit code 3 while a checkpoint is written": case("exit-3", "save", 2, sync="shadow:ma", rank=0, resumed=3),
    "ends with 0 in the middle": case("os-exit-0", "backward", 3),
    "hangs in evaluation_model()": case("sleep", "evaluated", 1, sync="ma:every=2", rank=0),
    "a NaN": case("nan", "forward", 4, sync="bsp", balance="static:shares=2/1"),
    "SIGTERM with the parameter server in rank 0": case("launcher-term", "backward", 2, sync="asp", resumed=2),
    "Ctrl-C": case("launcher-int", "step", 12, sync="local:every=3", resumed=2),
    "killed, and the others continue": case("kill", "step", 2, sync="asp", workers=3),
    "a shard is killed": case("shard", "forward", 3, sync="asp", servers=1, resumed=3),
    "a rank leaves the loop early": case("break", "step", 4, sync="local:every=3"),
    "saved after an epoch's last step": case("late", "backward", 4, save_every=3, resumed=3),
    "saved with a batch in hand": case("raise", "batch", 12, save_every=4, ahead=True, resumed=3),
    "the launcher is killed": case("launcher-kill", "backward", 3),
    "no room to say that the others go on": case("markers", "import", sync="easgd:every=2"),
    "no room for the journal": case("journal-full", "import", sync="hierarchical:every=2", rank=0, resumed=3),
}


def test_every_fault_ends_as_it_has_to_and_every_sample_is_used_once() -> None:
    played = dict(zip(CASES, play_all(list(CASES.values()), lambda *_: None, play), strict=True))
    assert [name for name, one in played.items() if not one.struck] == []
    wrong = {name: (one.wrong, one.said) for name, one in played.items() if one.wrong}
    assert not wrong, "\n".join(f"{name}: {what}\n{said}" for name, (what, said) in wrong.items())
    assert sum(one.resumed for one in played.values()) >= 6
