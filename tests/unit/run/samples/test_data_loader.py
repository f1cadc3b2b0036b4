"""The loader on data sets with an index: exactness, reading ahead, calls, and refusals."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psutil
import pytest
import torch
from crew import Numbers, NumberStream, crew, flat, loader_of, random_splits
from hypothesis import given, settings
from hypothesis import strategies as st

from brought import brought, refusal
from uneven.errors import ConfigError, DataError
from uneven.policy.samples.order import Portion, epoch_order
from uneven.run.samples.in_flight import InFlightBatches
from uneven.run.samples.loader import BalancedLoader


def fail_in_a_loop_over(loader: BalancedLoader) -> None:
    for _ in loader:
        raise ZeroDivisionError


def one(dataset: Any, **kwargs: Any) -> BalancedLoader:
    keywords: dict[str, Any] = {"batch_size": 4, "rank": 0, "workers": 1, "seed": 0, **kwargs}
    keywords.setdefault("split_for", lambda _: (keywords["batch_size"],))
    return loader_of(dataset=dataset, **keywords)


@settings(max_examples=60)
@given(
    length=st.integers(1, 90), world_size=st.integers(1, 5), batch_size=st.integers(5, 20),
    seed=st.integers(0, 99),
)  # fmt: skip
def test_every_sample_once_an_epoch_in_an_order_of_seed_and_epoch(
    length: int, world_size: int, batch_size: int, seed: int
) -> None:
    ranks = crew(Numbers(length), world_size=world_size, batch_size=batch_size, split_seed=seed, seed=seed)
    for epoch in range(2):
        seen = ranks.epoch()
        assert flat(seen) == epoch_order(length=length, seed=seed, epoch=epoch).tolist()
        assert [len(batch) for batch in seen[:-1]] == [batch_size] * (len(seen) - 1)
        assert len(seen) == len(ranks.loaders[0])


@pytest.mark.parametrize("options", [{}, {"prefetch_factor": 4}, {"persistent_workers": True}])
def test_every_sample_once_with_reader_processes(options: dict[str, Any]) -> None:
    ranks = crew(Numbers(50), world_size=2, num_workers=2, **options)
    for epoch in range(2):
        seen = ranks.epoch()
        assert flat(seen) == epoch_order(length=50, seed=5, epoch=epoch).tolist()
        assert [len(batch) for batch in seen] == [12, 12, 12, 12, 2]


def test_without_shuffle_the_samples_come_as_they_lie() -> None:
    assert flat(crew(Numbers(30), shuffle=False).epoch()) == list(range(30))


def test_a_last_part_smaller_than_the_workers_gives_every_rank_a_batch() -> None:
    ranks = crew(Numbers(26), world_size=4, batch_size=12, split_for=lambda _: (6, 3, 2, 1), lower=1)
    *_, (part, batches) = ranks.iterations()
    assert part.shares == (1, 1, 0, 0)
    order = epoch_order(length=26, seed=5, epoch=0).tolist()
    assert [batch.tolist() for batch in batches] == [[order[24]], [order[25]], [order[24]], [order[24]]]


def test_a_padded_batch_repeats_samples_of_its_part_up_to_lower() -> None:
    ranks = crew(Numbers(25), world_size=2, split_for=lambda _: (9, 3), lower=3, shuffle=False)
    *_, (part, batches) = ranks.iterations()
    assert part.shares == (1, 0)
    assert [batch.tolist() for batch in batches] == [[24], [24, 24, 24]]


def test_a_share_of_nothing_in_a_full_iteration_is_padded_too() -> None:
    ranks = crew(Numbers(8), world_size=2, batch_size=4, split_for=lambda _: (4, 0), shuffle=False)
    got = [(part.batch(1), batches[1].tolist()) for part, batches in ranks.iterations()]
    assert got == [(0, [0]), (0, [4])]


def test_drop_last() -> None:
    ranks = crew(Numbers(30), drop_last=True, shuffle=False)
    assert len(ranks.loaders[0]) == 2
    assert flat(ranks.epoch()) == list(range(24))
    assert flat(ranks.epoch()) == list(range(24))


@pytest.mark.parametrize(
    ("num_workers", "prefetch_factor", "lookahead"),
    [(0, None, 0), (1, None, 2), (1, 1, 1), (1, 2, 2), (1, 4, 4), (2, 1, 2), (2, 2, 4), (2, 4, 8)],
)
def test_torch_draws_exactly_lookahead_batches_beyond_the_one_handed_out(
    num_workers: int, prefetch_factor: int | None, lookahead: int
) -> None:
    asked: list[int] = []

    def split_for(iteration: int) -> tuple[int, ...]:
        asked.append(iteration)
        return (4,)

    loader = one(Numbers(64), split_for=split_for, num_workers=num_workers, prefetch_factor=prefetch_factor)
    assert loader.lookahead == lookahead
    assert asked == []
    for k, _ in enumerate(loader):
        assert asked == list(range(min(k + lookahead, 15) + 1))
    assert asked == list(range(16))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_split_decided_when_an_iteration_ends_holds_lookahead_plus_one_later(num_workers: int) -> None:
    in_force: dict[int, tuple[int, ...]] = {}
    decided: list[int] = []
    parts: list[Portion] = []

    def end(leaving: bool) -> None:
        k = parts[-1].iteration
        decided.append(k)
        in_force[k + 1 + loader.lookahead] = (1 + k % 3, 3 - k % 3)

    loader = one(
        Numbers(40), workers=2, split_for=lambda k: in_force.get(k, (2, 2)), begin=parts.append, end=end,
        num_workers=num_workers,
    )  # fmt: skip
    sizes = [len(batch) for batch in loader]
    ahead = loader.lookahead
    assert sizes == [2] * (1 + ahead) + [1 + k % 3 for k in range(9 - ahead)]
    assert decided == list(range(10))


def test_begin_and_end_enclose_each_iteration_and_end_comes_before_loading() -> None:
    calls: list[str] = []

    class Telling(Numbers):
        def __getitem__(self, index: int) -> torch.Tensor:
            calls.append("load")
            return super().__getitem__(index)

    loader = one(
        Telling(5), batch_size=2, begin=lambda part: calls.append(f"begin {part.iteration}"),
        end=lambda leaving: calls.append("end"),
    )  # fmt: skip
    for _ in loader:
        calls.append("step")
    loads = (["load", "load"], ["load", "load"], ["load"])
    assert calls == [call for k, load in enumerate(loads) for call in (*load, f"begin {k}", "step", "end")]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_leaving_a_loop_ends_its_iteration_and_the_next_loop_is_the_next_epoch(num_workers: int) -> None:
    calls: list[str] = []
    loader = one(
        Numbers(20), begin=lambda part: calls.append(f"{part.epoch}/{part.iteration}"),
        end=lambda leaving: calls.append("end"), num_workers=num_workers,
    )  # fmt: skip
    for _ in loader:
        break
    assert calls == ["0/0", "end"]
    assert (loader.epoch, loader.iteration) == (0, 1)
    with pytest.raises(ZeroDivisionError):
        fail_in_a_loop_over(loader)
    assert calls == ["0/0", "end", "1/1", "end"]
    assert flat([batch.tolist() for batch in loader]) == epoch_order(length=20, seed=0, epoch=2).tolist()
    assert calls[4:] == ["2/2", "end", "2/3", "end", "2/4", "end", "2/5", "end", "2/6", "end"]
    assert (loader.epoch, loader.iteration) == (3, 7)


def test_a_new_loop_ends_an_iterator_that_is_still_held_and_that_one_does_not_go_on() -> None:
    calls: list[str] = []
    loader = one(Numbers(8), begin=lambda _: calls.append("begin"), end=lambda leaving: calls.append("end"))
    held = iter(loader)
    next(held)
    next(iter(loader))
    assert calls == ["begin", "end", "begin", "end"]
    with pytest.raises(DataError, match=r"the second loop took it.*session\.evaluate"):
        next(held)


@brought(
    "loops", "PyTorch", "`DataLoader(data, batch_size=None)`, for data sets that yield whole batches", refused=True
)
def test_without_a_batch_size_it_is_refused() -> None:
    with refusal(r"batch_size=None.*session\.step"):
        one(Numbers(8), batch_size=None)


@brought("loops", "PyTorch DDP", "`loader.sampler.set_epoch(epoch)`", refused=True)
def test_a_sampler_that_is_not_there_says_what_to_leave_out() -> None:
    loader = one(Numbers(8))
    with refusal(r"leave sampler\.set_epoch\(epoch\) out"):
        loader.sampler.set_epoch(1)
    assert not hasattr(loader, "sampler")
    assert not hasattr(loader, "collate_fn")


def test_what_was_only_looked_at_comes_again() -> None:
    model, hands = torch.nn.Linear(1, 1), InFlightBatches()
    hands.watch(model, optimizer := torch.optim.SGD(model.parameters(), lr=0.0))
    model.register_forward_pre_hook(hands.forward, with_kwargs=True)
    loader = one(Numbers(8), hands=hands, batch_size=2)
    first = next(iter(loader))
    assert next(iter(loader)).tolist() == first.tolist()
    batches = iter(loader)
    model(next(batches)[:, None].float()).sum().backward()
    optimizer.step()
    batches.close()
    assert (next(iter(loader)).tolist(), loader.epoch) != (first.tolist(), 0)
    assert loader.epoch == 1


def test_two_iterators_that_take_turns_are_refused() -> None:
    loader = one(Numbers(8))
    with pytest.raises(DataError, match="has one place in the run"):
        list(zip(loader, loader, strict=False))


def test_readers_that_live_on_do_not_mix_up_epochs_after_leaving_early() -> None:
    ranks = crew(Numbers(60), world_size=2, num_workers=1, persistent_workers=True)
    assert len(ranks.epoch(most=1)) == 1
    assert flat(ranks.epoch()) == epoch_order(length=60, seed=5, epoch=1).tolist()


@pytest.mark.parametrize("dataset", [Numbers(20), NumberStream(20)])
def test_close_ends_the_iteration_and_readers_that_live_on(dataset: Any) -> None:
    calls: list[str] = []
    others = set(psutil.Process().children())  # the processes kept for tests on several ranks
    loader = one(dataset, num_workers=1, persistent_workers=True, end=lambda leaving: calls.append("end"))
    held = iter(loader)
    next(held)
    readers = set(psutil.Process().children()) - others
    assert readers
    loader.close()
    loader.close()
    assert calls == ["end"]
    assert not any(reader.is_running() for reader in readers)
    with pytest.raises(DataError, match="closed"):
        next(iter(loader))


def test_the_users_collate_function_sees_the_samples_of_this_rank() -> None:
    def collate(samples: list[torch.Tensor]) -> str:
        return "+".join(str(int(sample)) for sample in samples)

    ranks = crew(Numbers(9), world_size=2, batch_size=8, split_for=lambda _: (5, 3), shuffle=False,
                 collate_fn=collate)  # fmt: skip
    assert [batches for _, batches in ranks.iterations()] == [["0+1+2+3+4", "5+6+7"], ["8", "8"]]


def test_pin_memory_reaches_torch() -> None:
    if torch.cuda.is_available():
        assert all(batch.is_pinned() for batch in one(Numbers(8), pin_memory=True))
    else:
        with pytest.warns(UserWarning, match="pin_memory"):
            assert len(list(one(Numbers(8), pin_memory=True))) == 2


def test_split_for_may_move_while_torch_reads_ahead_on_several_ranks() -> None:
    split_for = random_splits(4, 16, seed=3)
    ranks = crew(Numbers(100), world_size=4, batch_size=16, split_for=split_for, num_workers=1)
    parts = [part for part, _ in ranks.iterations()]
    assert [part.shares for part in parts[:-1]] == [split_for(k) for k in range(6)]
    assert parts[-1].size == 4


@pytest.mark.parametrize(
    ("keywords", "error", "said"),
    [
        ({"batch_size": 3, "workers": 4}, DataError, "global batch of 3 is too small for 4 workers"),
        ({"batch_size": 7, "workers": 4, "lower": 2}, DataError, "global batch of at least 8"),
        ({"lower": 0}, DataError, "lower = 0"),
        ({"batch_size": 99, "drop_last": True}, DataError, "drops all 20 samples"),
    ],
)
def test_settings_that_cannot_work_are_refused(keywords: dict[str, Any], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        one(Numbers(20), **keywords)


def test_data_sets_that_cannot_work_are_refused() -> None:
    class OnlyItems:
        def __getitem__(self, index: int) -> int:
            return index

    with pytest.raises(DataError, match="OnlyItems: give it __len__"):
        one(OnlyItems())
    with pytest.raises(DataError, match="its length is 0"):
        one([])
    with pytest.raises(DataError, match="can be read only once"):
        one(iter([1, 2]))


def test_a_split_that_does_not_fit_stops_the_loop_with_its_iteration() -> None:
    with pytest.raises(ConfigError, match="split of iteration 0"):
        list(one(Numbers(20), split_for=lambda _: (3,)))


def test_batches_to_try_a_step_on_use_nothing_up() -> None:
    loader = one(Numbers(10), collate_fn=tuple, shuffle=False)
    assert loader.sample(3) == (0, 1, 2)
    assert loader.sample(12) == (*range(10), 0, 1), "a small data set begins again"
    assert loader.reads_along
    assert [len(batch) for batch in loader] == [4, 4, 2]
    stream = one(NumberStream(10))
    assert not stream.reads_along
    with pytest.raises(DataError, match="batch_of"):
        stream.sample(1)


def test_an_iteration_ends_with_whether_the_loop_was_left_in_it() -> None:
    ends: list[bool] = []
    loader = one(Numbers(12), end=ends.append)
    for _ in loader:
        break
    assert ends == [True]

    def caller() -> Iterator[None]:
        try:
            yield
        finally:
            ends.clear()
            for _ in loader:
                pass

    generator = caller()
    next(generator)
    generator.close()  # its GeneratorExit is not the loader's
    assert ends == [False] * 3
