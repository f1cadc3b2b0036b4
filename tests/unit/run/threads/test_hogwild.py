"""Several threads of one worker on one replica: what they share, what they do not, and how they end."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import uneven
from uneven.errors import CheckpointError, ConfigError, TrainingError
from uneven.journal import read
from uneven.policy.core.records import EventRecord, ExchangeRecord, StepRecord
from uneven.run.threads.batch_queue import Stopped
from uneven.run.threads.twins import SharedOptimizer, twin
from uneven_bench.inside import inside

N, X = 50, 12  # four full batches and a last one of 2
Make = Callable[[nn.Module], torch.optim.Optimizer]


def net() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 3))


def momentum(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=0.01)


def plain(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05)


def numbered() -> TensorDataset:
    generator = torch.Generator().manual_seed(7)
    return TensorDataset(torch.randn(N, 5, generator=generator), torch.arange(N) % 3, torch.arange(N))


class Run:
    """A session with all that belongs to a loop, which notes who had which samples."""

    def __init__(self, threads: int, make: Make = momentum, run_dir: Path | None = None, **session: Any) -> None:
        self.session = uneven.Session(threads=threads, run_dir=run_dir, **session)
        self.model = net()
        self.optimizer = make(self.model)
        self.session.setup(self.model, self.optimizer)
        self.loader = self.session.loader(numbered(), X)
        self.seen: list[int] = []
        self.threads: set[int] = set()

    def step(self, model: nn.Module, optimizer: torch.optim.Optimizer, batch: Any) -> None:
        x, y, index = batch
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        self.seen += index.tolist()
        self.threads.add(self.session.thread)

    def loop(self, model: nn.Module, optimizer: torch.optim.Optimizer, batches: Any) -> None:
        for batch in batches:
            self.step(model, optimizer, batch)


@pytest.fixture
def run() -> Iterator[Callable[..., Run]]:
    made: list[Run] = []

    def make(*args: Any, **more: Any) -> Run:
        made.append(Run(*args, **more))
        return made[-1]

    yield make
    for one in made:
        one.session.close()


def values(run: Run) -> list[torch.Tensor]:
    return [*run.model.state_dict().values()]


def test_one_thread_is_the_plain_loop_bit_by_bit(run: Callable[..., Run]) -> None:
    ours, theirs = run(1), run(1)
    state = torch.get_rng_state()
    for _ in range(2):
        ours.session.train(ours.loop)
    torch.set_rng_state(state)
    for _ in range(2):
        for batch in theirs.loader:
            theirs.step(theirs.model, theirs.optimizer, batch)
    assert all(torch.equal(a, b) for a, b in zip(values(ours), values(theirs), strict=True))
    assert ours.seen == theirs.seen


@pytest.mark.parametrize("make", [plain, momentum, adam])
def test_three_threads_use_every_sample_once_an_epoch(run: Callable[..., Run], make: Make, tmp_path: Path) -> None:
    ours = run(3, make, run_dir=tmp_path)
    met = threading.Barrier(3)

    def loop(model: nn.Module, optimizer: torch.optim.Optimizer, batches: Any) -> None:
        assert len(batches) == 5
        for count, batch in enumerate(batches):
            if count == 0:  # all three are in a step at once
                met.wait()
            ours.step(model, optimizer, batch)
            ours.session.log(loss=1.0)

    for _ in range(2):
        ours.session.train(loop)
    assert sorted(ours.seen) == sorted([*range(N)] * 2)
    assert ours.threads == {0, 1, 2}
    assert ours.model[1].num_batches_tracked == 10  # buffers are one, too
    assert len(ours.optimizer.state) == (0 if make is plain else 6)
    assert all(one.isfinite().all() for one in values(ours))
    ours.session.close()
    records = list(read(tmp_path).records())
    steps = [one for one in records if isinstance(one, StepRecord)]
    assert [one.iteration for one in steps] == list(range(10))
    assert {(one.threads, one.thread) for one in steps} == {(3, 0), (3, 1), (3, 2)}
    assert sum(one.batch for one in steps) == 2 * N


def test_threads_exchange_through_a_server_in_the_background(run: Callable[..., Run]) -> None:
    ours = run(3, sync="shadow:load=1:easgd", balance="even")
    records: list[ExchangeRecord] = []
    inside(ours.session).records(records.append)
    for _ in range(2):
        ours.session.train(ours.loop)
    assert sorted(ours.seen) == sorted([*range(N)] * 2)
    assert inside(ours.session).sync.clock == 10
    with ours.session.evaluation_model():
        assert all(one.isfinite().all() for one in values(ours))
    assert records
    assert {(one.moment, one.threads) for one in records} == {("background", 3)}
    gaps = [one.gap for one in records]
    assert all(gaps)
    assert sum(gaps) <= 10, "a step of any thread counts, and counts once"


def test_twins_lie_over_the_same_memory_and_count_their_own_writes() -> None:
    model = net()
    copied, aliases = twin(model)
    for (name, one), other in zip(model.state_dict().items(), copied.state_dict().values(), strict=True):
        assert one.data_ptr() == other.data_ptr(), name
    x, y, _ = numbered().tensors
    shared = SharedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    stepper = shared.copy(aliases)
    shared.open()
    before = model[0].weight.clone()
    loss, other_loss = F.cross_entropy(model(x), y), F.cross_entropy(copied(x), y)
    other_loss.backward()
    stepper.step()  # between the forward and the backward pass of the first
    assert not torch.equal(model[0].weight, before)
    loss.backward()
    assert model[0].weight.grad is not copied[0].weight.grad
    refused = F.cross_entropy(model(x), y)
    with torch.no_grad():  # what twins are there to avoid
        model[3].weight.mul_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        refused.backward()
    shared.close()


@pytest.mark.parametrize("make", [plain, momentum, adam])
def test_taking_turns_copies_learn_what_one_model_learns(make: Make) -> None:
    """Nothing is lost between copies but what a race may lose: without one, they are one model, bit by bit."""
    alone, model = net(), net()
    lone, optimizer = make(alone), make(model)
    shared = SharedOptimizer(optimizer)
    copied, aliases = twin(model)
    seats = [(model, optimizer), (copied, shared.copy(aliases))]
    shared.open()
    x, y, _ = numbered().tensors
    for number in range(10):
        for one, stepper in ((alone, lone), seats[number % 2]):
            torch.manual_seed(number)  # dropout
            F.cross_entropy(one(x), y).backward()
            stepper.step()
            stepper.zero_grad()
    shared.close()
    assert all(torch.equal(a, b) for a, b in zip(alone.state_dict().values(), model.state_dict().values(), strict=True))
    ours, theirs = optimizer.state_dict()["state"], lone.state_dict()["state"]
    torch.testing.assert_close(ours, {} if make is plain else theirs, rtol=0, atol=0)


def test_copies_of_an_optimizer_share_its_state_and_follow_its_learning_rate() -> None:
    model = net()
    original = momentum(model)
    scheduler = torch.optim.lr_scheduler.StepLR(original, 1, gamma=0.5)
    clipped: list[object] = []
    original.register_step_pre_hook(lambda optimizer, *_: clipped.append(optimizer))
    shared = SharedOptimizer(original)
    copied, aliases = twin(model)
    stepper = shared.copy(aliases)
    shared.open()
    for parameter in copied.parameters():
        parameter.grad = torch.ones_like(parameter)
    stepper.step()
    assert clipped == [stepper]
    buffers = [original.state[one]["momentum_buffer"] for one in model.parameters()]
    assert all((one == 1).all() for one in buffers)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    original.step()
    scheduler.step()
    assert stepper.param_groups[0]["lr"] == 0.025
    stepper.param_groups[0]["lr"] = 0.5
    assert original.param_groups[0]["lr"] == 0.5
    assert all(torch.allclose(stepper.state[a]["momentum_buffer"], torch.tensor(1.9)) for a in aliases.values())
    shared.close()
    original.state.clear()
    with pytest.raises(ConfigError, match="has parameters that are not in the model"):
        SharedOptimizer(torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)).copy(aliases)
    with pytest.raises(ConfigError, match="LBFGS"):
        SharedOptimizer(torch.optim.LBFGS(model.parameters()))
    model.leaf = model[0].weight * 2
    with pytest.raises(ConfigError, match="cannot be copied"):
        twin(model)


def test_a_first_step_that_is_broken_off_holds_up_nobody() -> None:
    def fails() -> float:
        raise ZeroDivisionError

    model = net()
    original = momentum(model)
    shared = SharedOptimizer(original)
    stepper = shared.copy(twin(model)[1])
    shared.open()
    for _ in range(2):  # the first state is still to be filled in, and nobody else may meanwhile
        with pytest.raises(ZeroDivisionError):
            stepper.step(fails)
        assert shared._filling.locked()
    shared.let_go(stepper)  # as when its thread ends
    assert not shared._filling.locked()
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    original.step()
    assert not shared._filling.locked()
    shared.close()


def test_a_failing_thread_stops_the_others_and_is_named(run: Callable[..., Run], tmp_path: Path) -> None:
    ours = run(2, run_dir=tmp_path)
    others: list[type[BaseException]] = []
    failed = threading.Event()

    def loop(model: nn.Module, optimizer: torch.optim.Optimizer, batches: Any) -> None:
        if ours.session.thread == 1:
            for _ in batches:
                failed.set()
                raise ZeroDivisionError("a bad sample")
        try:
            for batch in batches:
                failed.wait()
                ours.step(model, optimizer, batch)
        except TrainingError as error:
            others.append(type(error))
            raise

    with pytest.raises(ZeroDivisionError, match="a bad sample") as caught:
        ours.session.train(loop)
    (note,) = caught.value.__notes__
    assert note.startswith("in thread 1 of rank 0, in iteration ")
    assert others == [Stopped] or len(ours.seen) == N - X  # it may have been last already
    ours.session.train(ours.loop)  # and on, with the next epoch
    ours.session.close()
    told = [one for one in read(tmp_path).records() if isinstance(one, EventRecord) and one.event == "thread-failed"]
    assert "ZeroDivisionError: a bad sample: in thread 1 of rank 0" in told[0].message


def test_ctrl_c_ends_all_threads(run: Callable[..., Run]) -> None:
    ours = run(3)

    def loop(model: nn.Module, optimizer: torch.optim.Optimizer, batches: Any) -> None:
        for batch in batches:
            if ours.session.thread == 0:
                begun.set()
                raise KeyboardInterrupt
            begun.wait()  # or there might be nothing left for thread 0
            ours.step(model, optimizer, batch)

    begun = threading.Event()
    before = torch.get_num_threads()
    with pytest.raises(KeyboardInterrupt) as caught:
        ours.session.train(loop)
    assert caught.value.__notes__[0].startswith("in thread 0 of rank 0")
    assert torch.get_num_threads() == before


def test_a_signal_that_arrives_while_thread_0_waits_ends_all_threads(run: Callable[..., Run]) -> None:
    ours = run(2)

    def loop(model: nn.Module, optimizer: torch.optim.Optimizer, batches: Any) -> None:
        for batch in batches:
            if ours.session.thread == 0:
                begun.wait()  # or there might be nothing left for thread 1
            ours.step(model, optimizer, batch)
            if ours.session.thread == 1:
                begun.set()
                os.kill(os.getpid(), signal.SIGINT)  # thread 0 takes the rest meanwhile, and waits for this one
                running = ours.session._threads._running
                while not running._queue._stopped:
                    time.sleep(0.001)

    begun = threading.Event()
    with pytest.raises(KeyboardInterrupt):
        ours.session.train(loop)
    ours.seen.clear()
    ours.session.train(ours.loop)
    assert sorted(ours.seen) == list(range(N))


def test_who_leaves_its_loop_leaves_the_rest_to_the_others(run: Callable[..., Run]) -> None:
    ours = run(2)

    def loop(model: nn.Module, optimizer: torch.optim.Optimizer, batches: Any) -> None:
        for batch in batches:
            ours.step(model, optimizer, batch)
            if ours.session.thread == 1:
                break

    ours.session.train(loop)
    assert sorted(ours.seen) == list(range(N))


def test_a_checkpoint_in_mid_epoch_holds_what_has_been_learnt(run: Callable[..., Run]) -> None:
    first, second = run(2, sync="ma:every=2"), run(3, sync="ma:every=2")
    saved: dict[str, Any] = {}
    used: list[int] = []

    def loop(model: nn.Module, optimizer: torch.optim.Optimizer, batches: Any) -> None:
        for count, batch in enumerate(batches, 1):
            first.step(model, optimizer, batch)
            if count == 2:
                with pytest.raises(CheckpointError, match=r"with session.pause_threads\(\)"):
                    first.session.state_dict()
                with first.session.pause_threads():
                    if not saved:
                        used.extend(first.seen)
                        saved.update(first.session.state_dict())
                with pytest.raises(TrainingError, match="evaluation_model while 2 threads train"):
                    first.session.evaluation_model()
                with pytest.raises(TrainingError, match="evaluate while 2 threads train"):
                    first.session.evaluate(len, numbered(), X)

    first.session.train(loop)
    second.session.load_state_dict(saved)
    assert inside(second.session).sync.clock == len(used) // X + bool(len(used) % X)
    second.session.train(second.loop)
    assert sorted(used + second.seen) == list(range(N)), "nothing twice, nothing left out"


def test_a_pause_in_a_pause_ends_with_the_outer_one(run: Callable[..., Run]) -> None:
    ours = run(2)
    states = []

    def loop(model: nn.Module, optimizer: torch.optim.Optimizer, batches: Any) -> None:
        for batch in batches:
            ours.step(model, optimizer, batch)
            with ours.session.pause_threads():
                with ours.session.pause_threads():
                    pass
                states.append(ours.session.state_dict())  # the outer pause still holds

    ours.session.train(loop)
    assert len(states) == 5
    assert sorted(ours.seen) == [*range(N)]


@pytest.mark.parametrize(
    ("use", "words"),
    [
        (lambda run: list(run.loader), "give it to session.train as a function"),
        (lambda run: run.session.profile(print), "session.profile measures a step that has the machine to itself"),
    ],
)
def test_what_is_for_one_thread_is_refused(run: Callable[..., Run], use: Callable[[Run], Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        use(run(2))


def test_calls_out_of_order_are_refused() -> None:
    with uneven.Session(threads=2) as session:
        with pytest.raises(ConfigError, match=r"after session\.setup"):
            session.train(print)
        with pytest.raises(ConfigError, match="a model on meta: threads share memory on the CPU only"):
            session.setup(nn.Linear(2, 2, device="meta"))
    with pytest.raises(ConfigError, match="threads = 0"):
        uneven.Session(threads=0)
