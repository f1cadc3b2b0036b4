"""Profiles in a session: unequal workers start unequal, memory caps a share, and a failure reaches everybody."""

from __future__ import annotations

import copy
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from session_parts import Numbered, Stream, X, assert_same, net, reference, sgd
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import uneven
from uneven import journal
from uneven.errors import ConfigError, DataError, TrainingError
from uneven.policy.core.records import ProfileRecord, SplitRecord
from uneven.run.reports.profiling import refuse_speaking_layers
from uneven.testing.ranks import RankContext, ranks

SAMPLES = 64


@contextmanager
def room(more_bytes: int) -> Iterator[None]:
    """Address space for so much more; 0 leaves it as it is."""
    if not more_bytes:
        yield
        return
    before = resource.getrlimit(resource.RLIMIT_AS)
    here = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (here + more_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def small() -> tuple[nn.Module, TensorDataset]:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
    return model, TensorDataset(torch.randn(2 * SAMPLES, 64), torch.randint(0, 4, (2 * SAMPLES,)))


def loss_of(model: nn.Module, batch: Any, ballast: bool = False) -> torch.Tensor:
    x, y = batch
    kept = torch.empty(len(x) if ballast else 1, 2**20)  # 4 MiB for each sample, which nobody writes to
    return F.cross_entropy(model(x), y) + 0.0 * kept.stride(0)


@ranks(2, fresh=True)  # others leave freed memory behind, which would hold the ballast
def unequal(me: RankContext, tmp_path: str) -> None:
    model, data = small()
    before = copy.deepcopy(model)
    passes = (1, 40)[me.rank]  # so much slower is rank 1 that no other load can make up for it
    with uneven.Session(run_dir=tmp_path) as session:
        model, optimizer = session.setup(model, sgd(model))
        loader = session.loader(data, SAMPLES)
        even = session.next_shares

        def step(batch: Any) -> None:
            for _ in range(passes):
                loss_of(model, batch).backward()
            optimizer.step()

        profiles = session.profile(step, within_s=20.0)  # it ends at the largest batch long before
        fast, slow = session.next_shares
        assert even == (SAMPLES // 2, SAMPLES // 2)
        assert fast > slow, profiles
        assert_same(model, before, 0.0)
        assert all(p.grad is None for p in model.parameters())
        for batch in loader:
            assert len(batch[0]) == (fast, slow)[me.rank], "it holds from the first iteration on"
            loss_of(model, batch).backward()
            optimizer.step()
            break
    model, data = small()
    with uneven.Session() as session:
        model, optimizer = session.setup(model, sgd(model))
        loader = session.loader(data, SAMPLES)

        def hungry(batch: Any) -> None:
            for _ in range(passes):
                loss_of(model, batch, ballast=me.rank == 0).backward()

        with room(64 * 2**20 if me.rank == 0 else 0):
            profiles = session.profile(hungry, within_s=20.0)
        most = profiles[0].most
        assert most is not None
        assert profiles[0].failed is not None
        assert profiles[0].failed <= 32
        assert session.next_shares == (most, SAMPLES - most), "the fast one would have had more"
        for batch in loader:
            loss_of(model, batch).backward()
            optimizer.step()
            optimizer.zero_grad()
        assert session.next_shares[0] <= most


def test_the_first_split_follows_the_profiles_and_memory_caps_a_share(tmp_path: Path) -> None:
    unequal(str(tmp_path))
    records = list(journal.read(tmp_path).records())
    profiles = [record for record in records if isinstance(record, ProfileRecord)]
    first = next(record for record in records if isinstance(record, SplitRecord))
    assert [one.rank for one in profiles] == [0, 1]
    assert all(len(one.sizes) == len(one.seconds) and one.most == SAMPLES for one in profiles)
    assert (first.iteration, sum(first.shares)) == (0, SAMPLES)
    assert first.predicted_per_s[0] > first.predicted_per_s[1]


@ranks(2)
def test_whoever_fails_is_named_to_the_others_and_the_run_can_go_on(me: RankContext) -> None:
    with uneven.Session() as session:
        model = net()
        model, optimizer = session.setup(model, sgd(model))
        loader = session.loader(Numbered(), X)

        def step(batch: Any) -> None:
            if me.rank == 1:
                raise ZeroDivisionError("by nothing")
            loss_of(model, batch[:2]).backward()

        with pytest.raises(ZeroDivisionError if me.rank == 1 else TrainingError, match="by nothing"):
            session.profile(step, within_s=0.2)
        for batch in loader:
            loss_of(model, batch[:2]).backward()
            optimizer.step()
            optimizer.zero_grad()
        assert_same(model, reference(1, net()))


@ranks(2)
def test_another_session_that_is_in_the_midst_of_its_epoch_does_not_matter(me: RankContext) -> None:
    with uneven.Session() as first, uneven.Session() as second:
        one, other = net(), net()
        optimizer = first.setup(one, sgd(one))[1]
        batches = iter(first.loader(Numbered(), X))
        x, y, _ = next(batches)
        loss_of(one, (x, y)).backward()
        optimizer.step()
        second.setup(other, sgd(other))
        second.loader(Numbered(), X)
        assert set(second.profile(lambda batch: loss_of(other, batch[:2]).backward(), within_s=0.2)) == {0, 1}
        with pytest.raises(ConfigError, match="from the loader of another session"):
            other(x)
        batches.close()


def test_it_is_refused_where_it_makes_no_sense() -> None:
    with uneven.Session() as session:
        model = net()

        def step(batch: Any) -> None:
            loss_of(model, batch[:2]).backward()

        with pytest.raises(ConfigError, match=r"between session\.loader and the loop"):
            session.profile(step)
        session.setup(model)
        loader = session.loader(Stream(), X)
        with pytest.raises(DataError, match="batch_of"):
            session.profile(step)
        with pytest.raises(ConfigError, match="within_s"):
            session.profile(step, within_s=0.0)
        asked: list[int] = []

        def batch_of(samples: int) -> Any:
            asked.append(samples)
            return torch.randn(samples, 5), torch.zeros(samples, dtype=torch.int64)

        profile = session.profile(step, batch_of=batch_of, within_s=5.0)[0]
        assert asked == list(profile.sizes) == [1, 2, 4, 8, X]
        for _ in loader:
            break
        with pytest.raises(ConfigError, match="the loop"):
            session.profile(step, batch_of=batch_of)


def test_layers_that_speak_to_other_workers_are_refused() -> None:
    layer = nn.Sequential(nn.SyncBatchNorm(4))
    with pytest.raises(ConfigError, match="0 is a SyncBatchNorm"):
        refuse_speaking_layers(layer, 2)
    refuse_speaking_layers(layer, 1)
