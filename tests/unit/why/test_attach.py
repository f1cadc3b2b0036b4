"""The measurement in a worker: it sees the steps and changes no number of the training."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import re
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from uneven import journal
from uneven.errors import JournalError
from uneven.journal.reader import rank_path
from uneven.policy.core.records import FactsRecord, MeetingsRecord, StepRecord
from uneven.runtime.jobs.call import _limit
from uneven.runtime.tcp_store import fail_after
from uneven.testing.ranks import RankContext, ranks, run_ranks
from uneven.why import facts
from uneven.why.explanation import explain
from uneven.why.probe import Probe, sparse
from uneven.why.start import attach

STEPS = 12


def trained(probed: str | None, *, passes: int = 1) -> list[float]:
    torch.manual_seed(3)
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2)))
    layers = [layer for layer in model.module if isinstance(layer, nn.Linear)]
    weights, biases = [layer.weight for layer in layers], [layer.bias for layer in layers]
    optimizers = [torch.optim.SGD(weights, lr=0.1), torch.optim.Adam(biases)]
    probe = attach(probed) if probed else None
    data = TensorDataset(torch.randn(STEPS * passes * 4, 6), torch.randn(STEPS * passes * 4, 2))
    for number, (x, y) in enumerate(DataLoader(data, batch_size=4), start=1):
        last = number % passes == 0
        model.require_backward_grad_sync = last
        nn.functional.mse_loss(model(x), y).backward()
        if last:
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
            with torch.no_grad():
                model.module(x)
    if probe is not None:
        probe.close()
    return [value for parameter in model.parameters() for value in parameter.detach().flatten().tolist()]


def _both(me: RankContext, folder: str, passes: int) -> tuple[list[float], list[float]]:
    return trained(None, passes=passes), trained(folder, passes=passes)


@pytest.mark.parametrize("passes", [1, 4])
def test_the_weights_are_bit_equal_and_every_step_is_seen(passes: int, tmp_path: Path) -> None:
    for without, measured in run_ranks(2, _both, tmp_path, passes):
        assert without == measured
    records = list(journal.read(tmp_path).records())
    steps = [one for one in records if isinstance(one, StepRecord) and one.rank == 0]
    assert [one.iteration for one in steps] == list(range(STEPS - 1))  # the first has no beginning
    assert {one.batch for one in steps} == {4 * passes}
    assert {one.global_batch for one in steps} == {8 * passes}  # completed from both workers' records
    assert all(one.exchange_s > 0.0 for one in steps)
    assert len(journal.iterations(records)) == STEPS - 1
    assert any(isinstance(one, FactsRecord) for one in records)
    assert not any(isinstance(one, MeetingsRecord) for one in records)  # one meeting a step


@ranks(2)
def test_an_error_in_the_measurement_ends_the_measurement_alone(me: RankContext, tmp_path: str) -> None:
    probe = attach(Path(tmp_path) / str(me.rank))

    def broken(*_: Any) -> None:
        raise ZeroDivisionError

    probe._end_step = broken  # type: ignore[method-assign]
    torch.manual_seed(3)
    layer = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    for _ in range(4):
        layer(torch.ones(2)).sum().backward()
        optimizer.step()
    assert not probe.measures
    again = attach(Path(tmp_path) / f"again-{me.rank}")
    assert again.measures
    again.close()


def _backward() -> None:
    torch.ones(1, requires_grad=True).sum().backward()


def _as_torch_214(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let an older torch report all_reduce and broadcast as 2.14 does."""
    distributed, group = torch.distributed, torch.distributed.ProcessGroup
    hooks: dict[int, Callable[[Any], None]] = {}

    def reporting(name: str) -> Callable[..., Any]:
        original = getattr(distributed, name)

        def call(tensor: torch.Tensor, *options: Any) -> None:
            for hook in list(hooks.values()):
                hook(SimpleNamespace(name=name, input_tensors=[tensor]))
            original(tensor, *options)

        return call

    monkeypatch.setattr(group, "register_pre_hook", lambda _, number, hook: hooks.update({number: hook}), raising=False)
    monkeypatch.setattr(group, "unregister_pre_hook", lambda _, number: hooks.pop(number), raising=False)
    for name in ("all_reduce", "broadcast"):
        monkeypatch.setattr(distributed, name, reporting(name))


def _without_optimizers_of_other_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    # One process runs many tests, and an optimizer that is not collected yet would be taken for one of this loop.
    monkeypatch.setattr("uneven.why.probe.has_optimizer", lambda: False)


@ranks(2)
def test_operations_that_torch_reports_tell_the_steps_of_a_loop_apart(me: RankContext, tmp_path: str) -> None:
    """All meetings of this loop wait in one line for one size."""
    with pytest.MonkeyPatch.context() as patches:
        _without_optimizers_of_other_tests(patches)
        if not hasattr(torch.distributed.ProcessGroup, "register_pre_hook"):
            _as_torch_214(patches)
        probe = attach(tmp_path)
        _backward()
        for _ in range(40):
            for operation in ("all_reduce", "broadcast"):
                getattr(torch.distributed, operation)(torch.ones(3), *(0,) * (operation == "broadcast"))
        probe.close()
    torch.distributed.barrier()
    steps = [one for one in journal.read(Path(tmp_path)).ranks[me.rank] if isinstance(one, StepRecord)]
    assert 20 <= len(steps) <= 40


@ranks(2)
def test_a_loop_without_an_optimizer_has_steps(me: RankContext, tmp_path: str) -> None:
    with pytest.MonkeyPatch.context() as patches:
        _without_optimizers_of_other_tests(patches)
        probe = attach(tmp_path)
        for number in range(80):
            if number == 40:  # the same meetings before the first backward pass are no steps
                _backward()
            for size in (3, 5):
                torch.distributed.all_reduce(torch.ones(size))
        probe.close()
    torch.distributed.barrier()
    steps = [one for one in journal.read(Path(tmp_path)).ranks[me.rank] if isinstance(one, StepRecord)]
    assert 15 <= len(steps) <= 40  # the first burst; such short steps are not all measured


@pytest.mark.parametrize(
    ("cost_s", "step_s", "one_in"), [(1e-4, 0.05, 1), (1e-4, 0.005, 4), (1e-4, 1e-4, 64), (0.0, 0.1, 1)]
)
def test_one_step_in_so_many_keeps_the_budget(cost_s: float, step_s: float, one_in: int) -> None:
    assert sparse(cost_s, step_s) == one_in


@ranks(2)
def test_short_steps_are_measured_in_bursts_that_all_workers_share(me: RankContext, tmp_path: str) -> None:
    probe = attach(tmp_path)
    layer = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    for number in range(2_000):
        layer(torch.ones(2)).sum().backward()
        if me.rank and number % 100 == 0:
            end_s = time.thread_time() + 0.01
            while time.thread_time() < end_s:
                pass
        optimizer.step()
    probe.close()
    torch.distributed.barrier()
    steps = {
        rank: {one.iteration for one in records if isinstance(one, StepRecord)}
        for rank, records in journal.read(Path(tmp_path)).ranks.items()
    }
    assert {*range(48)} <= steps[0] & steps[1]
    assert 60 < len(steps[0] & steps[1]) == min(map(len, steps.values())) < 1_100


@pytest.mark.rest
@ranks(2)
def test_a_step_with_many_meetings_takes_less_than_a_kilobyte(me: RankContext, tmp_path: str) -> None:
    probe = attach(tmp_path)
    layer = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    for _ in range(20):
        layer(torch.ones(2)).sum().backward()
        for _ in range(300):
            torch.distributed.all_reduce(layer.weight.grad)
        optimizer.step()
    probe.close()
    size = rank_path(Path(tmp_path), me.rank).stat().st_size
    steps = sum(isinstance(one, StepRecord) for one in journal.read(Path(tmp_path)).ranks[me.rank])
    assert steps >= 18
    assert size / steps < 1_000


def test_the_function_has_its_name_after_its_module_is_imported() -> None:
    importlib.import_module("uneven.cli.why_live")
    assert callable(importlib.import_module("uneven.why").explain)


def _hung(me: RankContext, folder: str) -> str:
    """Train; rank 1 hangs in its fifth step until both workers have recorded where they are; return the sentence."""
    facts.STILL_S = 0.5
    probe = attach(folder)
    model = nn.parallel.DistributedDataParallel(nn.Linear(6, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    said = ""

    def read_without_end() -> None:
        nonlocal said
        while not said:
            with suppress(JournalError):  # before the first records
                said = explain(folder, remedies=False).still

    for step in range(6):
        if me.rank == 1 and step == 4:
            read_without_end()
        model(torch.ones(3, 6)).sum().backward()
        optimizer.step()
    probe.close()
    return said


def test_a_worker_that_hangs_is_named_with_its_line(tmp_path: Path) -> None:
    _, said = run_ranks(2, _hung, str(tmp_path))
    where = r"rank 1 is in \w+ \(test_attach\.py:\d+\); rank 0 waits for other workers\."
    assert re.fullmatch(r"No step has ended for \d+ s: " + where, said)
    assert "read_without_end" in said
    assert explain(tmp_path, remedies=False).still == ""  # the steps went on


def test_a_wait_counts_while_another_thread_loads(tmp_path: Path) -> None:
    entered, leave = threading.Event(), threading.Event()

    class Script:
        @staticmethod
        def load() -> None:
            entered.set()
            assert leave.wait(20.0)

        @staticmethod
        def wait() -> None:
            pass

    seen: list[str] = []
    probe = Probe(tmp_path, 0, 1)
    probe._around(Script, "load", lambda *_: seen.append("load"))
    probe._around(Script, "wait", lambda *_: seen.append("wait"))
    loader = threading.Thread(target=Script.load)
    loader.start()
    assert entered.wait(20.0)
    Script.wait()
    leave.set()
    loader.join(20.0)
    assert seen == ["wait"]


def test_a_probed_call_compiles_into_one_graph(tmp_path: Path) -> None:
    class Script:
        @staticmethod
        def wait(x: torch.Tensor) -> torch.Tensor:
            return x + 1

    Probe(tmp_path, 0, 1)._around(Script, "wait", lambda *_: None)
    compiled = torch.compile(lambda x: Script.wait(x), fullgraph=True, backend="eager")
    assert compiled(torch.zeros(1)).tolist() == [1.0]


@pytest.mark.parametrize(
    "reads",
    [lambda _: fail_after(1, 10.0), lambda _: facts.Sockets().read(), _limit],
    ids=["fail_after", "Sockets", "_limit"],
)
def test_a_default_time_out_leaves_sockets_blocking(reads: Callable[[Any], Any]) -> None:
    one, other = multiprocessing.Pipe()
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(20.0)
    try:
        reads(one)
    finally:
        socket.setdefaulttimeout(before)
    with one, other:
        assert os.get_blocking(one.fileno())
