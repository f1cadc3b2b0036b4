"""A profile taken with a real model: limits, a real lack of memory, and nothing left behind."""

from __future__ import annotations

import copy
import math
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from uneven.errors import ConfigError
from uneven.run.measure.machine_load import LoadMeter
from uneven.run.measure.measure_profile import take_profile, untouched
from uneven.run.measure.memory import group_room_bytes, group_use, limit_bytes, use, used_bytes
from uneven_bench.forked.scripts import run_script


def model_and_step() -> tuple[nn.Module, torch.optim.Optimizer, Callable[[int], None]]:
    """Batch norm and dropout, and steps that change whatever can be changed."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.Dropout(0.5), nn.ReLU(), nn.Linear(32, 4))
    optimizer = torch.optim.Adam(model.parameters())

    def step(samples: int) -> None:
        model.train()
        x = torch.randn(max(samples, 2), 16) + random.random() + np.random.rand()
        loss = nn.functional.cross_entropy(model(x), torch.randint(0, 4, (len(x),)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return model, optimizer, step


def everything(model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    """All that must be as before, as text."""
    gradients = [p.grad for p in model.parameters()]
    modes = [module.training for module in model.modules()]
    numbers = torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[union-attr]
    with torch.random.fork_rng():
        torch.set_printoptions(precision=12, threshold=10**6)
        told = repr((model.state_dict(), gradients, modes, optimizer.state_dict(), numbers))
        torch.set_printoptions(profile="default")
    return told


@pytest.mark.parametrize("trained", [False, True])
def test_nothing_is_left_behind(trained: bool) -> None:
    model, optimizer, step = model_and_step()
    if trained:
        for _ in range(3):
            step(8)
    model.eval()
    before = everything(model, optimizer)
    step_changes = copy.deepcopy(before)
    told: list[int] = []
    # Time enough: with the first step of all, torch imports what its optimizers need, seconds on a busy machine.
    profile = take_profile(step, model, optimizer, most=32, within_s=60, progress=lambda size, done: told.append(size))
    assert everything(model, optimizer) == before
    assert profile.sizes == (1, 2, 4, 8, 16, 32) == tuple(told)
    assert profile.failed is None
    step(8)
    assert everything(model, optimizer) != step_changes, "the step does change things when nobody puts them back"


def test_parameters_stay_the_same_objects() -> None:
    model, optimizer, step = model_and_step()
    objects = [id(p) for p in model.parameters()]
    with untouched(model, optimizer):
        step(4)
    assert [id(p) for p in model.parameters()] == objects
    assert all(p.grad is None for p in model.parameters())


def test_buffers_that_a_pass_assigns_come_back() -> None:
    model = nn.Linear(2, 2)
    model.register_buffer("mean", torch.ones(2))
    model.register_buffer("last", None)
    before = model.mean
    with untouched(model):
        model.mean, model.last = before + 1, torch.zeros(2)
        before += 2  # an operation in place may come first
    assert model.mean is before
    assert before.tolist() == [1.0, 1.0]
    assert model.last is None


def test_an_error_that_is_not_about_memory_is_told_and_nothing_is_left_behind() -> None:
    model, optimizer, step = model_and_step()

    def wrong(samples: int) -> None:
        step(samples)
        if samples > 2:
            raise RuntimeError("shapes do not match")

    before = everything(model, optimizer)
    with pytest.raises(RuntimeError, match="shapes do not match"):
        take_profile(wrong, model, optimizer, most=32)
    assert everything(model, optimizer) == before


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory"), MemoryError()])
def test_a_lack_of_memory_ends_the_profile(error: Exception) -> None:
    model, optimizer, step = model_and_step()

    def hungry(samples: int) -> None:
        if samples > 8:
            raise error
        step(samples)

    profile = take_profile(hungry, model, optimizer, most=64)
    assert (profile.sizes, profile.failed, profile.most) == ((1, 2, 4, 8), 16, 7)


def test_a_single_sample_that_does_not_fit_is_refused() -> None:
    model, optimizer, _ = model_and_step()

    def hungry(samples: int) -> None:
        raise MemoryError

    with pytest.raises(ConfigError, match="does not fit the smallest batch"):
        take_profile(hungry, model, optimizer, most=4)
    with pytest.raises(ConfigError, match="most"):
        take_profile(hungry, model, optimizer, most=0)


def test_it_begins_at_the_smallest_batch_that_is_allowed() -> None:
    model, optimizer, step = model_and_step()
    assert take_profile(step, model, optimizer, least=3, most=12).sizes == (3, 6, 12)


def test_those_who_fill_the_same_memory_get_a_part_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """What four share stops where a quarter of it is full.

    32 MiB a sample, for what is larger the C library gives back as soon as it is freed.
    """
    monkeypatch.setattr("uneven.run.measure.measure_profile.limit_bytes", lambda device: used_bytes(device) + 3 * 2**28)
    model, kept = nn.Linear(1, 1), []

    def step(samples: int) -> None:
        kept.clear()
        kept.append(torch.ones(samples, 2**23))

    take_profile(step, model, most=1)  # what is loaded once, up to 150 MB, would count as the first sample's
    kept.clear()
    alone = take_profile(step, model, most=8, within_s=20.0)
    kept.clear()
    together = take_profile(step, model, most=8, within_s=20.0, sharers=4)
    assert alone.failed is None
    assert together.failed is not None


def test_short_steps_are_repeated_until_a_quota_would_show() -> None:
    model, _, _ = model_and_step()
    steps: list[int] = []
    take_profile(steps.append, model, most=2)
    assert steps.count(1) > 100


def test_without_time_a_single_sample_is_tried() -> None:
    model, optimizer, step = model_and_step()
    assert take_profile(step, model, optimizer, most=64, within_s=1e-9).sizes == (1,)


_CHILD = """
import resource, torch
from torch import nn
from uneven.run.measure.measure_profile import take_profile

torch.set_num_threads(1)
model = nn.Linear(1024, 1)  # much memory for little work
step = lambda samples: model(torch.ones(samples, 1024, requires_grad=True)).sum().backward()
step(1)
pages = int(open("/proc/self/statm").read().split()[0])
here = pages * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (here + 200 * 2**20,) * 2)
profile = take_profile(step, model, most=2**20, within_s=60.0)
step(profile.most)
print(profile.sizes[-1], profile.failed, profile.most)
"""


@pytest.mark.rest
def test_memory_that_really_does_not_suffice_does_not_end_the_process() -> None:
    """Address space for 200 MiB more; the run goes on with the limit that was found."""
    run = run_script(["-c", _CHILD], timeout_s=100)
    assert run.returncode == 0, run.stderr
    largest, failed, most = map(int, run.stdout.split())
    assert failed == 2 * largest
    assert most == int(0.9 * largest)
    assert failed * 1024 * 4 * 4 > 100 * 2**20, "it was the limit, not something smaller"


# --- limits -------------------------------------------------------------------------------------------------


def group(folder: Path, most: str, used: str, version: int = 2) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    names = ("memory.max", "memory.current") if version == 2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
    for name, text in zip(names, (most, used), strict=True):
        (folder / name).write_text(f"{text}\n")


def test_the_tightest_group_counts(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.write_text("0::/a/b\n")
    group(tmp_path / "a", "1000", "600")
    group(tmp_path / "a" / "b", "max", "100")
    assert group_room_bytes(tmp_path, own) == 400
    group(tmp_path / "a" / "b", "250", "100")
    assert group_room_bytes(tmp_path, own) == 150


def test_version_1_and_no_limit(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.write_text("12:cpu,cpuacct:/x\n7:memory:/job\n")
    group(tmp_path / "memory", "9223372036854771712", "600", version=1)
    assert group_room_bytes(tmp_path, own) is None
    group(tmp_path / "memory" / "job", "500", "700", version=1)
    assert group_room_bytes(tmp_path, own) == 0, "more in use than allowed leaves nothing"
    assert group_room_bytes(tmp_path, tmp_path / "missing") is None


def test_pages_that_can_be_dropped_are_no_use(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.write_text("0::/a\n")
    group(tmp_path / "a", "1000", "950")
    assert group_use(tmp_path, own) == 0.95
    (tmp_path / "a" / "memory.stat").write_text("anon 300\ninactive_file 600\nactive_file 50\n")
    assert group_room_bytes(tmp_path, own) == 650
    assert group_use(tmp_path, own) == 0.35
    assert group_use(tmp_path, tmp_path / "missing") == 0.0


def test_a_larger_batch_than_ever_has_the_memory_looked_at() -> None:
    meter = LoadMeter(0)
    assert math.isnan(meter.memory)
    told, looked = [], []
    for iteration, batch in enumerate((4, 4, 8, 6, 8, 9)):
        meter.memory = math.nan
        told.append(meter.sample(iteration, batch, trained_s=0.1) is not None)
        looked.append(0.0 < meter.memory <= 1.0)
    meter.close()
    assert looked == [True, False, True, False, False, True]
    assert told == [True, False, False, False, False, False]  # the rest of a record can wait until one is due


def test_whoever_looks_for_the_record_looks_at_the_memory_too() -> None:
    meter = LoadMeter(0, every_s=0.0)
    meter.sample(0, 4, trained_s=0.1)
    meter.memory = math.nan
    look = meter.sample(1, 4, trained_s=0.1)
    assert math.isnan(meter.memory)
    assert look is not None
    look()
    assert 0.0 < meter.memory <= 1.0
    meter.memory = math.nan
    meter.refresh()  # where nobody looks
    assert 0.0 < meter.memory <= 1.0
    meter.close()


def test_the_machine_is_looked_at_by_the_time_of_the_training() -> None:
    meter = LoadMeter(0, every_s=5.0)
    told = [meter.sample(number, 4, trained_s=2.0) is not None for number in range(8)]
    meter.close()
    assert told == [True, False, False, True, False, False, True, False]


def test_what_is_seen_of_the_machine_is_of_the_time_since_the_last_look() -> None:
    times_s, looks = [time.time()], []
    meter = LoadMeter(3, every_s=0.0)
    for iteration in range(3):
        end_s = time.process_time() + 0.3
        while time.process_time() < end_s:
            pass
        look = meter.sample(iteration, 4, trained_s=0.1)
        assert look is not None
        thread = threading.Thread(target=lambda look=look: looks.append(look()))  # wherever records are made
        thread.start()
        thread.join()
        times_s.append(time.time())
    meter.close()
    assert [(one.rank, one.iteration) for one in looks] == [(3, 0), (3, 1), (3, 2)]
    for one, began_s, ended_s in zip(looks, times_s, times_s[1:], strict=False):
        assert 0.0 < one.machine_cpu <= 1.0
        assert one.process_cpu > 0.5 * 0.3 / (ended_s - began_s)  # on a busy machine that took long
        assert 0.0 < one.machine_memory < 1.0
        assert one.process_memory_bytes > 2**20
    assert looks[0].at_s < looks[1].at_s < looks[2].at_s


def test_the_part_of_the_machine_in_use_is_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums of many small times are rounded, and the time of waiting for disks may decrease."""
    times = iter([(1.0, 1.0), (3.0 + 1e-12, 3.0), (2.9, 4.0)])
    monkeypatch.setattr("uneven.run.measure.machine_load._times_s", lambda: next(times))
    meter = LoadMeter(0, every_s=0.0)
    looks = [meter.sample(iteration, 4, trained_s=0.1) for iteration in range(2)]
    assert [look().machine_cpu for look in looks if look is not None] == [1.0, 0.0]
    meter.close()


def test_this_machine_has_a_limit() -> None:
    assert 0.0 < use(torch.device("cpu")) <= 1.0
    assert math.isnan(use(torch.device("meta")))
    assert (limit_bytes(torch.device("cpu")) or 0) > 2**20
    assert limit_bytes(torch.device("meta")) is None


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_device_the_memory_limit_is_found_without_a_crash() -> None:
    device = torch.device("cuda")
    model = nn.Linear(1024, 1024).to(device)

    def step(samples: int) -> None:
        model(torch.ones(samples, 2**16, 1024, device=device, requires_grad=True)).sum().backward()

    profile = take_profile(step, model, most=2**20, within_s=30.0)
    step(profile.most or profile.sizes[-1])
    assert torch.cuda.is_available()
    assert 0.0 < use(device) <= 1.0
