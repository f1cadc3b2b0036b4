"""One process on its GPU: time by events, memory, mixed precision, compiled models, checkpoints."""

from __future__ import annotations

import copy
import itertools
import os
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from gpu_training import Make, X, adam, alone, assert_same, dataset, global_batches, mlp, momentum
from torch import nn

import uneven
from uneven.embedding import SGD, EmbeddingBagCollection, Table
from uneven.journal import read
from uneven.policy.core.records import StepRecord
from uneven.run.measure.machine_load import nvml_uuid
from uneven.run.measure.meter import DeviceClock
from uneven.runtime.states import random_state, set_random_state
from uneven.testing.callbacks import alone as by_itself

GPU = torch.device("cuda", 0)


def test_marks_time_the_device_and_do_not_wait_for_it() -> None:
    clock, cycles = DeviceClock(GPU), 200_000_000
    torch.cuda._sleep(1)
    torch.cuda.synchronize()
    begun_s = time.perf_counter()
    first = clock.mark()
    torch.cuda._sleep(cycles)
    last = clock.mark()
    issued_s = time.perf_counter() - begun_s
    assert not clock.passed(last)
    torch.cuda.synchronize()
    waited_s = time.perf_counter() - begun_s
    assert clock.passed(last)
    took_s, _ = clock.between(first, last)
    assert issued_s < took_s / 2
    assert took_s <= waited_s


@pytest.mark.parametrize("make", [momentum, adam])
def test_a_session_trains_as_the_plain_loop(make: Make) -> None:
    model = mlp(GPU)
    with uneven.Session() as session:
        assert session.device == GPU
        trained, optimizer = session.setup(model, make(model))
        loader = session.loader(dataset(), global_batch_size=X, num_workers=2, pin_memory=True)
        for _ in range(3):
            for x, y in loader:
                assert x.is_pinned()
                x, y = x.to(GPU, non_blocking=True), y.to(GPU, non_blocking=True)
                F.cross_entropy(trained(x), y).backward()
                optimizer.step()
                optimizer.zero_grad()
    assert_same(model, alone(mlp(GPU), make, 3))


def test_the_journal_has_the_devices_seconds(tmp_path: Path) -> None:
    """The host has issued a step long before the device has done it."""
    cycles_of_a_ms = 1_500_000
    with uneven.Session(run_dir=tmp_path / "run") as session:
        model = mlp(GPU)
        trained, optimizer = session.setup(model, momentum(model))
        loader = session.loader(dataset(), global_batch_size=X)
        for _ in range(3):
            for x, y in loader:
                torch.cuda._sleep(20 * cycles_of_a_ms)
                F.cross_entropy(trained(x.to(GPU)), y.to(GPU)).backward()
                optimizer.step()
                optimizer.zero_grad()
        torch.cuda.synchronize()
    steps = [one for one in read(tmp_path / "run").records() if isinstance(one, StepRecord)]
    assert steps
    assert all(one.compute_s + one.data_s > 0.01 for one in steps)


def test_half_precision_with_a_scaler() -> None:
    def loop(model: nn.Module, optimizer: torch.optim.Optimizer, batches: Iterable[Any]) -> nn.Module:
        scaler = torch.amp.GradScaler("cuda", init_scale=2.0**20)
        for x, y in batches:
            with torch.autocast("cuda", torch.float16):
                loss = F.cross_entropy(model(x.to(GPU)), y.to(GPU))
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        return model

    plain = mlp(GPU, torch.float32)
    loop(plain, momentum(plain), global_batches(1, torch.float32))
    with uneven.Session() as session:
        model = mlp(GPU, torch.float32)
        trained, optimizer = session.setup(model, momentum(model))
        loop(trained, optimizer, session.loader(dataset(torch.float32), global_batch_size=X))
    assert_same(model, plain, 1e-6)


def test_a_compiled_model() -> None:
    script = Path(__file__).with_name("compiled_script.py")
    environment = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    ended = subprocess.run(
        [sys.executable, str(script)], env=environment, capture_output=True, text=True, timeout=100, check=False
    )
    assert ended.returncode == 0, ended.stderr


def test_a_resumed_session_goes_on_as_if_nothing_had_been() -> None:
    def steps(loader: Iterable[Any], model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        for x, y in itertools.islice(loader, 2):
            F.cross_entropy(model(x.to(GPU)), y.to(GPU)).backward()
            optimizer.step()
            optimizer.zero_grad()

    first, second = mlp(GPU), mlp(GPU)
    with uneven.Session() as session:
        session.setup(first, optimizer := momentum(first))
        loader = iter(session.loader(dataset(), global_batch_size=X))
        steps(loader, first, optimizer)
        state = copy.deepcopy((first.state_dict(), optimizer.state_dict(), session.state_dict()))
        steps(loader, first, optimizer)
    with uneven.Session() as session:
        session.setup(second, optimizer := momentum(second))
        loader = session.loader(dataset(), global_batch_size=X)
        for one, held in zip((second, optimizer, session), state, strict=True):
            one.load_state_dict(held)
        steps(loader, second, optimizer)
    assert_same(second, first)


def test_random_numbers_of_the_device_are_kept() -> None:
    torch.cuda.manual_seed(5)
    torch.rand(3, device=GPU)
    state = random_state()
    drawn = torch.rand(3, device=GPU)
    torch.cuda.manual_seed(99)
    set_random_state(state)
    assert torch.equal(torch.rand(3, device=GPU), drawn)


def test_what_the_device_does_not_hold_is_done_in_passes() -> None:
    """A batch that is too large is a limit, not an error, and leaves nothing behind."""
    model = mlp(GPU)
    sixteenth = torch.cuda.get_device_properties(GPU).total_memory // 16 // 4
    with uneven.Session() as session:
        trained, optimizer = session.setup(model, momentum(model))
        loader = session.loader(dataset(), global_batch_size=X, microbatch="auto")

        def step(batch: tuple[torch.Tensor, torch.Tensor]) -> None:
            x, y = (one.to(GPU) for one in batch)
            held = torch.ones(len(x), sixteenth, device=GPU)
            (F.cross_entropy(trained(x), y) + held[0, 0] * 0).backward()

        found = session.profile(step, within_s=20.0)[0]
        assert found.most is None, "passes are no limit"
        passes = []
        for batch in loader:
            passes.append(0)
            for piece in session.microbatches(batch):
                step(piece)
                passes[-1] += 1
            optimizer.step()
            optimizer.zero_grad()
    assert passes[0] == 4  # eight samples fit and sixteen do not; nine tenths of eight are seven
    assert_same(model, alone(mlp(GPU), momentum, 1))


def test_preconditioners_work_on_the_device() -> None:
    for make, steps, tolerance in (
        (lambda: uneven.KFAC(damping=0.1, kl_clip=0.01, factor_update_steps=2, inv_update_steps=4), momentum, 1e-9),
        (lambda: uneven.SOAP(), lambda m: torch.optim.SGD(m.parameters(), lr=0.01), 1e-6),
        (
            lambda: uneven.Muon(ns_dtype=torch.float64),
            lambda m: torch.optim.SGD([one for one in m.parameters() if one.ndim == 2], lr=0.01),
            1e-9,
        ),
    ):
        models = []
        for device in ("cpu", "cuda"):
            model = mlp(device)
            worker = by_itself(model, steps(model), make())
            for x, y in global_batches(2):
                worker.step(x.to(device), y.to(device))
            models.append(model)
        assert_same(models[1], models[0], tolerance)


def test_nvml_knows_the_device() -> None:
    import pynvml

    pynvml.nvmlInit()
    name = pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByUUID(nvml_uuid(GPU)))
    pynvml.nvmlShutdown()
    assert name == torch.cuda.get_device_name(GPU)


def test_tables_whose_ids_lie_on_the_device() -> None:
    """The rows come there, and learn from what comes back; at home nothing changes."""
    ids = torch.arange(12).view(6, 2) % 5
    trained = {}
    for device in ("cpu", "cuda"):
        torch.manual_seed(0)
        tables = EmbeddingBagCollection([Table(5, 4, "one"), Table(5, 4, "two")], optimizer=SGD(lr=0.5))
        head = nn.Linear(8, 1)
        head.to(device)
        for _ in range(3):
            pooled = tables(ids.to(device)).values()
            assert pooled.device.type == device
            head(pooled).square().mean().backward()
        trained[device] = tables.to_state_dict()
        tables.close()
    for name, rows in trained["cpu"].items():
        torch.testing.assert_close(trained["cuda"][name], rows, rtol=1e-5, atol=1e-6)


def test_ids_on_the_device_in_other_forms() -> None:
    tables = EmbeddingBagCollection([Table(5, 4, "one", ["a", "b"])], optimizer=SGD(lr=0.5))
    values, offsets, weights = torch.tensor([1, 2, 3]), torch.tensor([0, 2]), torch.tensor([1.0, 2.0, 3.0])
    forms = {"a": (values, offsets, weights), "b": values[:2]}
    on_device = {"a": tuple(one.cuda() for one in forms["a"]), "b": forms["b"].cuda()}
    with torch.no_grad():
        assert torch.equal(tables(on_device)["a"].cpu(), tables(forms)["a"])
    tables.close()
