"""Functions in processes of their own: what they say, how they end, and that nothing is left of them."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import jobs_functions as functions
from uneven.errors import ConfigError
from uneven.runtime.jobs import Ending, How, call, end_all
from uneven.runtime.jobs.engines import Local
from uneven.runtime.jobs.executor import Linked
from uneven.runtime.jobs.processes import import_path
from uneven_bench.forked.scripts import Script


@pytest.fixture(autouse=True)
def light_processes() -> Iterator[None]:
    """New processes import the script that was started, which is pytest here; they can do without it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules["__main__"], "__spec__", None)
        patch.delattr(sys.modules["__main__"], "__file__", raising=False)
        yield


class World:
    """A place, and what has been heard there."""

    def __init__(self) -> None:
        self.place = Local()
        self.heard: list[Any] = []
        self.ended: dict[str, Ending] = {}

    def start(self, name: str, target: Any, *arguments: Any) -> Linked:
        return self.place.start(name, target, arguments, heard=lambda _, what: self.heard.append(what), ended=self._end)

    def _end(self, process: Linked) -> None:
        assert process.ending is not None
        self.ended[process.name] = process.ending


@pytest.fixture
def world() -> Iterator[World]:
    one = World()
    yield one
    one.place.close()


def gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def until_gone(*pids: int) -> None:
    while not all(map(gone, pids)):
        signal.sigtimedwait([], 0.005)


def test_it_answers_says_where_it_is_and_ends_when_nobody_asks_any_more(world: World) -> None:
    both = [world.start(f"times {factor}", functions.answers, factor) for factor in (2, 3)]
    for number, one in enumerate(both, 4):
        one.send(number)
    while len(world.heard) < 2:
        world.place.wait(5.0)
    assert sorted(world.heard) == [("is", 8), ("is", 15)]
    assert [one.at for one in both] == ["number 4", "number 5"]
    assert both[0].wait(0.0) is None
    assert end_all(both) == [Ending.of(0)] * 2
    both[0].send(6)  # in vain
    world.place.wait(0.0)
    assert world.ended == {}  # whoever has waited for them knows


def test_how_each_has_ended_is_heard_after_its_last_words(world: World) -> None:
    for how in ("raises", "is told", "leaves", "is lost", "returns"):
        world.start(how, functions.ends, how)
    while len(world.ended) < 5:
        world.place.wait(5.0)
    raised = world.ended.pop("raises")
    assert (raised.how, raised.code) == (How.FAILED, 1)
    assert raised.cause.startswith("Traceback")
    assert raised.cause.endswith("ValueError: not this one\n")
    assert world.ended == {
        "is told": Ending(How.FAILED, "sample 3 is broken", 1),  # an error of ours needs no traceback
        "leaves": Ending.of(3), "is lost": Ending.of(-9), "returns": Ending.of(0),
    }  # fmt: skip
    assert world.heard == [("last words", "returns")]


def test_one_that_hangs_is_ended_with_what_it_has_started(world: World) -> None:
    one = world.start("it", functions.hangs)
    while not one.at:
        world.place.wait(5.0)
    world.place.awake.now_s += 301.0
    assert one.kill(hung=str(one.silence)) == Ending(How.HUNG, "no heartbeat for 301 s, the last one at a sleep", -9)
    until_gone(*world.heard[0][1:])
    assert one.end() == one.ending == one.kill()


def test_one_that_takes_no_message_is_ended(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call, "_LONGEST_MESSAGE_S", 1)
    one = world.start("it", functions.answers, 2)
    os.kill(one.pid, signal.SIGSTOP)
    one.send("x" * 10**7)
    while not world.ended:
        world.place.wait(5.0)
    assert world.ended == {"it": Ending.of(-9)}


def test_what_cannot_be_sent_is_refused(world: World) -> None:
    with pytest.raises(ConfigError, match="it: its arguments cannot be sent to another process"):
        world.start("it", functions.answers, lambda: 2)


@pytest.mark.parametrize("does", ["hangs", "speaks"])
def test_nothing_is_left_when_the_program_is_killed_that_started_it(does: str, tmp_path: Path) -> None:
    script = tmp_path / "starts.py"
    script.write_text(
        "import jobs_functions as functions\n"
        "from uneven.runtime.jobs.engines import Local\n"
        "from uneven_bench.forked.run import fork_workers\n"
        "if __name__ == '__main__':\n"
        "    fork_workers()\n"
        "    place = Local()\n"
        "    say = lambda _, what: print(*what[1:], flush=True)\n"
        f"    one = place.start('it', functions.{does}, (), heard=say, ended=print)\n"
        "    while True: place.wait(60.0)\n"
    )
    path = os.pathsep.join([str(Path(functions.__file__).parent), import_path()])
    environment = {**os.environ, "PYTHONPATH": path, "TMPDIR": str(tmp_path)}  # Python leaves its fork server's folder
    with Script([script], env=environment) as starter:
        while not (words := starter.printed()).endswith("\n"):
            assert starter.poll() is None, starter.communicate()
            signal.sigtimedwait([], 0.005)
        pids = [int(word) for word in words.splitlines()[0].split()]
        starter.kill()
        assert len(pids) == 2
        until_gone(*pids)
