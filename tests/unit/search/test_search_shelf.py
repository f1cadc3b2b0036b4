"""Which prepared samples and states of trials lie where."""

import re
import time
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import search_functions as functions
from uneven.errors import ConfigError
from uneven.runtime.jobs import Stop
from uneven.runtime.jobs.engines import Local
from uneven.search import checkpoints, engine
from uneven.search.data import SharedData, TrialData
from uneven.search.pure.core import SearchCore
from uneven.search.pure.placing import Placer
from uneven.search.pure.sample_cache import SampleCache, slots_for
from uneven.search.pure.schedulers import schedulers
from uneven.search.pure.searchers import searchers
from uneven.search.pure.space import Space, loguniform
from uneven.search.pure.trial_records import SearchTerms


def test_a_chunk_is_made_once_for_all_who_come() -> None:
    shelf = SampleCache(slots=8, per_pass=4, ahead=1)
    assert shelf.want(1, 0, 3) is None
    assert shelf.want(2, 0, 3) is None
    assert shelf.assign("a") == (0, 0)
    assert shelf.assign("b") == (1, 1)  # ahead of them
    assert shelf.assign("c") is None
    assert shelf.made("a") == {1: 0, 2: 0}
    assert shelf.want(3, 0, 3) == 0
    with pytest.raises(ConfigError, match="still making chunk 1"):
        shelf.assign("b")


def test_nothing_is_made_ahead_of_the_end_of_an_epoch() -> None:
    shelf = SampleCache(slots=8, per_pass=4, ahead=3)
    shelf.want(1, 3, 3)
    assert shelf.assign("a") == (3, 0)
    assert shelf.assign("b") is None


def test_the_highest_epoch_goes_first_and_never_what_somebody_reads() -> None:
    shelf = SampleCache(slots=3, per_pass=2, ahead=0)
    for trial, chunk in ((1, 0), (2, 2), (3, 4)):
        shelf.want(trial, chunk, chunk)
        assert shelf.assign("a") is not None
        shelf.made("a")
    shelf.want(4, 1, 1)
    assert shelf.assign("a") is None  # all three are being read
    shelf.leave(1)
    shelf.leave(3)
    assert shelf.assign("a") == (1, 2)  # where chunk 4 lay, of epoch 2
    shelf.made("a")
    assert sorted(shelf.ready) == [0, 1, 2]


def test_what_a_lost_maker_was_making_is_made_by_another() -> None:
    shelf = SampleCache(slots=2, per_pass=2, ahead=0)
    shelf.want(1, 0, 1)
    shelf.assign("a")
    assert shelf.lost("a") == 0
    assert shelf.lost("b") is None
    assert shelf.assign("b") in ((0, 0), (0, 1))
    assert shelf.made("b") in ({1: 0}, {1: 1})


def test_room_short_enough_takes_what_was_made_ahead_for_others() -> None:
    shelf = SampleCache(slots=2, per_pass=4, ahead=1)
    shelf.want(1, 0, 3)
    for maker in "ab":
        shelf.assign(maker)
        shelf.made(maker)
    shelf.want(2, 3, 3)
    assert shelf.assign("a") == (3, 1)


def test_chunks_made_ahead_do_not_evict_each_other() -> None:
    shelf = SampleCache(slots=6, per_pass=79)
    for reader in range(4):
        shelf.want(reader, 20 * reader, 78)
    made: list[int] = []
    while len(made) < 10 and (found := shelf.assign("m")) is not None:
        made.append(found[0])
        shelf.made("m")
    assert made == [0, 20, 40, 60, 1, 21]


def test_the_size_of_the_shelf() -> None:
    assert slots_for(1e6, 1000, per_pass=10, readers=2, ahead=2, passes=3) == 30
    assert slots_for(20_000, 1000, per_pass=10, readers=2, ahead=2, passes=3) == 20
    with pytest.raises(ConfigError, match="data_bytes=3000 or more"):
        slots_for(2000, 1000, per_pass=10, readers=2, ahead=2, passes=1)
    with pytest.raises(ConfigError, match="0 slots"):
        SampleCache(slots=0, per_pass=1)


class Noted:
    """A place whose processes note what is sent to them, and do nothing."""

    address, devices = "127.0.0.1", ("a", "b")

    def start(self, *_: Any, **__: Any) -> Any:
        return SimpleNamespace(send=self.sent.append, kill=self.kill, quiet_s=9.0, ending=None)

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.killed: list[str] = []

    def kill(self, hung: str) -> None:
        self.killed.append(hung)


def pool(directory: Path, scheduler: str, trials: int, **given: Any) -> tuple[engine.Pool, Noted]:
    place = Noted()
    terms = SearchTerms(metric="score", trials=trials)
    core = SearchCore(
        terms, Space({"rate": loguniform(1e-3, 0.3)}), schedulers.resolve(scheduler), searchers.resolve("random")
    )
    return engine.Pool(core, place, directory, b"", Placer(), Stop(), lambda now: None, **given), place  # type: ignore[arg-type]


def test_a_clone_starts_from_the_state_that_its_source_was_still_saving(tmp_path: Path) -> None:
    made, place = pool(tmp_path, "pbt:perturbation_interval=2,quantile_fraction=0.5,synch=true", trials=3)
    made._fill()

    def hear(trial: int, what: str, *rest: Any) -> None:
        made._heard(made.slots.team(trial)[0].process, (what, trial, *rest))

    def save(trial: int, t: float) -> None:
        path = checkpoints.path_of(checkpoints.folder_of(tmp_path, trial), 0, t)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()

    def report(trial: int, t: float, *, saved: bool = False) -> None:
        if saved:
            save(trial, t)
        hear(trial, "report", t, {"score": (3.0, 1.0, 2.0)[trial]}, {"seconds": 1.0, "saved": saved})

    report(0, 1.0, saved=True)
    report(0, 2.0)  # it waits for the others, and saves its state
    report(1, 2.0)
    hear(1, "left")
    report(2, 2.0)  # trial 1 becomes a clone of trial 0
    hear(2, "left")
    save(0, 2.0)
    hear(0, "left")
    report(0, 3.0, saved=True)  # it goes on before the clone, and its older states are deleted
    report(2, 4.0)
    hear(2, "left")
    job = next(job for what, job, *_ in place.sent if what == "run" and (job.number, job.life) == (1, 1))
    assert (job.t, job.load) == (2.0, checkpoints.folder_of(tmp_path, 1) / "1-2.pt")


def test_a_sample_that_hangs_is_named_and_ends_no_trial_that_waits_for_it(tmp_path: Path) -> None:
    made, place = pool(tmp_path, "fifo", trials=2, timeout_s=1e-6)
    made._fill()
    for slot in made.slots.all:
        slot.spoke = True
    data = TrialData(functions.Stuck(20), chunk=10, data_bytes=10_000, preprocessors=1)
    with closing(Local()) as here, closing(SharedData(data, here, made.core, made.tell)) as made.data:
        made.data.want(0, 0, 1)
        (maker,) = made.data._makers.values()
        until_s = time.monotonic() + 100
        while not (maker.at and maker.quiet_s > made.timeout_s) and time.monotonic() < until_s:
            here.wait(0.1)
        made._end_hanging()
        assert re.search(r"the last one at sample \d+ of the training set; .* larger timeout_s", str(made.data.failure))
    assert place.killed == ["trial 1 sent nothing for 1e-06 s"]  # trial 0 waits for the sample
