"""What a saved state counts as used: the samples whose gradients are in what is saved with it, and no others."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from session_parts import Numbered, Stream, X, net, sgd
from torch.utils.data import TensorDataset

import uneven
from uneven.testing.ranks import RankContext, ranks, run_ranks

EPOCHS = 3
LENGTH = 8 * X  # everybody has a sample of each part, also of the last one

Batch = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
State = dict[str, Any]


def numbered(length: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(7)
    x, y = torch.randn(length, 5, generator=generator), torch.randint(0, 3, (length,), generator=generator)
    return TensorDataset(x, y, torch.arange(length))


class Job:
    """A session with all that belongs to a loop, and the samples that its optimizer's steps have taken in."""

    def __init__(self, state: State | None = None, *, sync: str = "bsp", given: bool = True, dataset: Any = None,
                 **loader: Any) -> None:  # fmt: skip
        self.session = uneven.Session(sync=sync, balance="even")
        self.model = net()
        self.optimizer = sgd(self.model)
        self.session.setup(self.model, *([self.optimizer] if given else []))
        self.loader = self.session.loader(dataset or numbered(LENGTH), X, **loader)
        if state is not None:
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.session.load_state_dict(state["session"])
        self.used: list[int] = []
        self.steps = 0

    def backward(self, batch: Batch) -> Batch:
        F.cross_entropy(self.model(batch[0]), batch[1]).backward()
        return batch

    def step(self, *batches: Batch) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.steps += 1
        self.used += [number for batch in batches for number in batch[2].tolist()]

    def passes(self) -> Iterator[Iterator[Batch]]:
        return (iter(self.loader) for _ in range(self.loader.epoch, EPOCHS))

    def saved(self) -> State:
        return {
            "model": {name: value.clone() for name, value in self.model.state_dict().items()},
            "optimizer": self.optimizer.state_dict(),
            "session": self.session.state_dict(),
        }

    def place(self) -> tuple[int, int, int]:
        state = json.loads(self.session.state_dict()["loader"])
        return state["epoch"], state["cursor"], state["iteration"]


def together(used: list[int]) -> list[int]:
    table: list[Any] = [used]
    if dist.is_initialized():
        table = [None] * dist.get_world_size()
        dist.all_gather_object(table, used)
    return sorted(index for row in table for index in row)


# ---------------------------------------------------------------- after the last step of an epoch
KINDS: dict[str, dict[str, Any]] = {
    "indexed": {"dataset": Numbered()},
    "readers": {"dataset": Numbered(), "num_workers": 1},
    "stream": {"dataset": Stream()},
    "drop-last": {"dataset": Numbered(), "drop_last": True},
}


def steps_of(job: Job, until: int | None = None) -> list[int]:
    """Steps by epoch of a script that goes on where it was, and ends after so many steps, inside the loop."""
    by_epoch = []
    for batches in job.passes():
        by_epoch.append(0)
        for batch in batches:
            job.step(job.backward(batch))
            by_epoch[-1] += 1
            if job.steps == until:
                return by_epoch
    return by_epoch


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_saved_after_the_last_step_of_an_epoch_lacks_no_step_and_adds_none(kind: str) -> None:
    per_epoch = 4 if kind == "drop-last" else 5
    for until in (per_epoch, per_epoch * EPOCHS):
        first = Job(**KINDS[kind])
        steps_of(first, until)
        state = first.saved()
        first.session.close()
        second = Job(state, **KINDS[kind])
        # The pass in which the state was saved has no step left, but what the script does after it is still to come.
        assert steps_of(second) == [0] + [per_epoch] * (EPOCHS - until // per_epoch)
        assert second.loader.epoch == EPOCHS
        second.session.close()


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")  # torch does not know that the step was made
def test_what_comes_after_an_epoch_is_done_once_for_each_also_by_who_resumes_at_its_end() -> None:
    """The learning rate falls after each epoch; so the weights are those of a run that was not interrupted."""

    def train(job: Job, saved: State | None, until: int | None = None) -> State:
        schedule = torch.optim.lr_scheduler.ExponentialLR(job.optimizer, 0.5)
        if saved is not None:
            schedule.load_state_dict(saved["schedule"])
        for batches in job.passes():
            for batch in batches:
                job.step(job.backward(batch))
                if job.steps == until:
                    return {**job.saved(), "schedule": schedule.state_dict()}
            schedule.step()
        return job.saved()

    whole = train(Job(), None)
    for until in (8, 11, 24):
        half = train(Job(), None, until)
        resumed = train(Job(half), half)
        for ours, theirs in zip(resumed["model"].values(), whole["model"].values(), strict=True):
            assert torch.equal(ours, theirs), until


# ---------------------------------------------------------------- batches in hand
def plain(job: Job) -> Iterator[None]:
    for batches in job.passes():
        for batch in batches:
            job.step(job.backward(batch))
            yield


def fetched_between_forward_and_backward(job: Job) -> Iterator[None]:
    """As nanoGPT does, over the ends of epochs."""
    every = chain.from_iterable(job.passes())
    batch = next(every, None)
    while batch is not None:
        loss = F.cross_entropy(job.model(batch[0]), batch[1])
        following = next(every, None)
        loss.backward()
        job.step(batch)
        yield
        batch = following


def fetched_one_ahead(job: Job) -> Iterator[None]:
    """As timm, Lightning and Accelerate do."""
    for batches in job.passes():
        for batch in one_ahead(batches):
            job.step(job.backward(batch))
            yield


def fetched_one_ahead_and_copied(job: Job) -> Iterator[None]:
    """As to a device, over the ends of epochs."""
    for batch in one_ahead(chain.from_iterable(job.passes())):
        job.step(job.backward(batch))
        yield


def one_ahead(batches: Iterator[Batch]) -> Iterator[Batch]:
    held: Batch | None = None
    for x, y, number in batches:
        if held is not None:
            yield held
        held = x.clone(), y.clone(), number
    if held is not None:
        yield held


def accumulated(job: Job) -> Iterator[None]:
    """A step for every two batches; it may be stopped between them."""
    for batches in job.passes():
        yield from in_windows(job, batches)


def accumulated_and_fetched_ahead(job: Job) -> Iterator[None]:
    for batches in job.passes():
        yield from in_windows(job, one_ahead(batches))


def in_windows(job: Job, batches: Iterator[Batch]) -> Iterator[None]:
    window: list[Batch] = []
    for batch in batches:
        window.append(job.backward(batch))
        if len(window) == 2:
            job.step(*window)
            window.clear()
        yield
    if window:
        job.step(*window)


def passed_twice(job: Job) -> Iterator[None]:
    """Two optimizer steps on each batch, one of them on each half of the model's passes."""
    for batches in job.passes():
        for batch in batches:
            job.backward(batch)
            job.optimizer.step()
            job.step(job.backward(batch))
            yield


def left_out(job: Job) -> Iterator[None]:
    """Every third batch is left out, before its forward pass; that is what its samples are used for."""
    for batches in job.passes():
        for number, batch in enumerate(batches):
            if number % 3 == 1:
                job.used += batch[2].tolist()
                continue
            job.step(job.backward(batch))
            yield


IDIOMS: dict[str, tuple[Callable[[Job], Iterator[None]], ...]] = {
    "bsp": (plain, fetched_between_forward_and_backward, fetched_one_ahead, fetched_one_ahead_and_copied, accumulated,
            accumulated_and_fetched_ahead, passed_twice, left_out),
    "local:every=2": (plain, accumulated, left_out),
    "asp": (plain, accumulated),
}  # fmt: skip
"""Where parameters are exchanged when the next batch is asked for, none may be asked for before its step."""


def train(me: RankContext, folder: str, sync: str, stops: int | None) -> dict[str, list[int]]:
    """Each idiom goes on from its file, makes so many turns, and saves; what all have used, by idiom."""
    used = {}
    for idiom in IDIOMS[sync]:
        path = f"{folder}/{idiom.__name__}"
        state = torch.load(path, weights_only=True) if me.size > 2 else None
        job = Job(state, sync=sync)
        turns = idiom(job)
        for _ in range(10_000 if stops is None else stops):
            next(turns, None)
        if stops is not None:
            with job.session.evaluation_model():
                saved = job.saved()
            if me.rank == 0:
                torch.save(saved, path)
        used[idiom.__name__] = together(job.used)
        dist.barrier()
        turns.close()  # type: ignore[attr-defined]
        job.session.close()
    return used


@pytest.mark.parametrize("sync", IDIOMS)
def test_every_sample_comes_once_an_epoch_over_runs_of_two_three_and_five_workers(sync: str, tmp_path: Any) -> None:
    """At their own pace workers come to the end of an epoch one by one, so there all stop within one."""
    stops = ((2, 2), (3, 2), (5, None)) if sync == "asp" else ((2, 3), (3, 7), (5, None))
    runs = [run_ranks(size, train, str(tmp_path), sync, turns)[0] for size, turns in stops]
    for idiom in IDIOMS[sync]:
        found = sorted(chain.from_iterable(run[idiom.__name__] for run in runs))
        assert found == sorted([*range(LENGTH)] * EPOCHS), f"{idiom.__name__} under {sync}"


def test_an_optimizer_made_later_counts_and_without_one_what_is_in_hand_counts() -> None:
    job = Job(given=False)
    for count, batch in enumerate(one_ahead(iter(job.loader)), 1):
        assert job.place()[2] == (2 if count == 1 else count - 1), "at first no step has been seen"
        job.step(job.backward(batch))
        assert job.place()[2] == count, "of two that were handed out one is in the model"
        if count == 2:
            break
    job.optimizer = torch.optim.Adam(job.model.parameters())
    for batch in job.loader:
        assert job.place()[:2] == (1, 0)
        job.step(job.backward(batch))
        assert job.place()[:2] == (1, X)
        break
    job.session.close()


def test_what_an_epoch_has_left_in_the_gradients_comes_in_the_pass_after_it() -> None:
    """A state that is saved between two epochs, where windows of three go on over their ends."""
    used: list[int] = []
    state = None
    for ends in range(EPOCHS):
        job = Job(state)
        assert job.loader.epoch == ends, "what the script does after an epoch is done once for each"
        window: list[Batch] = []
        for batch in job.loader:
            window.append(job.backward(batch))
            if len(window) == 3:
                job.step(*window)
                window.clear()
        state = job.saved()
        if ends == 0:
            assert (job.place(), json.loads(state["session"]["loader"])["reached"]) == ((0, 6 * X, 6), 1)
        used += job.used
        job.session.close()
    assert sorted(used) == sorted([*range(LENGTH)] * EPOCHS)


# ---------------------------------------------------------------- a centre that lacks the newest steps
def shown(job: Job) -> State:
    """As saved, of the model to evaluate, by rank 0."""
    with job.session.evaluation_model():
        states = [job.saved()]
        if dist.is_initialized():
            dist.broadcast_object_list(states)
        return states[0]


def numbers(state: State) -> tuple[dict[str, Any], dict[str, Any]]:
    return json.loads(state["session"]["loader"]), json.loads(state["session"]["agreement"])


@pytest.mark.parametrize("sync", ["bmuf:every=3", "diloco:every=3", "easgd:every=3,together=true"])
@ranks(2)
def test_steps_since_the_last_exchange_are_in_no_centre_and_do_not_count(me: RankContext, sync: str) -> None:
    for turns, kept in ((1, 0), (3, 0), (4, 3), (5, 3), (7, 6), (9, 6)):  # after 3 the exchange is still to come
        job = Job(sync=sync)
        script = plain(job)
        for _ in range(turns):
            next(script)
        loader, agreement = numbers(shown(job))
        epoch, rest = divmod(kept, 8)
        assert (loader["epoch"], loader["cursor"], loader["iteration"]) == (epoch, rest * X, kept), turns
        assert (agreement["clock"], agreement["gap"], agreement["owed"]) == (kept, 0, False)
        assert agreement["fresh"] == [0, 0]
        assert job.place()[2] == turns, "outside it is the replica that is saved, with all its steps"
        own = job.saved()
        job.session.close()

        again = Job(own, sync=sync)
        script = plain(again)
        loader, agreement = numbers(shown(again))
        if turns % 3:  # otherwise the exchange that was owed has been made up for
            assert (loader["iteration"], agreement["clock"]) == (kept, kept), "also of steps from before the resume"
        else:
            assert (loader["iteration"], agreement["clock"]) == (turns, turns)
        again.session.close()


@ranks(2)
def test_a_run_goes_on_from_a_centre_as_it_did_after_the_exchange(me: RankContext) -> None:
    sync = "bmuf:every=3,momentum=0.5"
    job = Job(sync=sync)
    job.optimizer.param_groups[0]["momentum"] = 0.0  # it has no state of its own
    script = plain(job)
    for _ in range(5):
        next(script)
    state = shown(job)
    for _ in range(5):
        next(script)
    again = Job(state, sync=sync)
    script = plain(again)
    for _ in range(7):
        next(script)
    for ours, theirs in zip(again.model.parameters(), job.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    assert together(again.used) == together(job.used[-len(again.used) :])
    job.session.close()
    again.session.close()


def test_a_centre_saved_after_an_epoch_goes_on_with_what_it_lacks_in_the_next_pass() -> None:
    job = Job(sync="bmuf:every=3")
    for _ in range(2):
        for batch in job.loader:
            job.step(job.backward(batch))
    state = shown(job)
    job.session.close()
    again = Job(state, sync="bmuf:every=3")
    assert again.loader.epoch == 2, "the script has done what comes after two epochs"
    assert steps_of(again) == [1 + 8]
    assert sorted(job.used[: 15 * X] + again.used) == sorted([*range(LENGTH)] * EPOCHS)
    again.session.close()
