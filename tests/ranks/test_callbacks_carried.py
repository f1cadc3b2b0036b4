"""Parts and lines between processes: who is missing is named, and waiting in a part is not taken for computing."""

from __future__ import annotations

import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from session_parts import Numbered, X, net
from torch import nn

import uneven
from lines_contract import exchange_all
from uneven import Callback, CallbackContext, Step, journal
from uneven.errors import ConfigError, PeerError
from uneven.policy.core.records import LineRecord
from uneven.testing.ranks import RankContext, ranks


class Given(Callback):
    """Shows what a part is given."""

    def __init__(self, name: str = "given") -> None:
        self._name = name

    @property
    def name(self) -> str:
        return self._name

    def attach(self, run: CallbackContext) -> None:
        self.lines = run.lines


def started(*parts: Callback, **settings: Any) -> tuple[uneven.Session, nn.Module, torch.optim.Optimizer]:
    session = uneven.Session(callbacks=parts, **settings)
    model = net()
    model, optimizer = session.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    return session, model, optimizer


@ranks(3)
def test_lines_between_processes_do_what_those_between_threads_do(me: RankContext) -> None:
    given = Given()
    session, *_ = started(given)
    exchange_all(given.lines)
    session.close()


class Opening(Callback):
    def __init__(self, line: str) -> None:
        self._line = line

    def attach(self, run: CallbackContext) -> None:
        run.lines.open(self._line)


@ranks(2)
def test_other_parts_on_other_ranks_are_refused_and_so_are_lines_at_ones_own_pace(me: RankContext) -> None:
    with pytest.raises(ConfigError, match=rf"line 'of {me.rank}' is opened on rank {me.rank} while rank {1 - me.rank}"):
        started(Opening(f"of {me.rank}"))
    with pytest.raises(ConfigError, match=r"under sync = ASP\S* workers take different numbers of steps"):
        started(Opening("any"), sync="asp", balance="even")


class Halting(Callback):
    """Sums in the forward pass, but for a rank that does not come."""

    def __init__(self, rank: int) -> None:
        self._rank = rank

    def attach(self, run: CallbackContext) -> None:
        self._line, self._mine = run.lines.open("halo"), run.rank

    def before_step(self, step: Step) -> None:
        if self._mine != self._rank:
            self._line.sum(torch.ones(1)).wait()


@ranks(3, join=False)
def test_who_is_missing_in_a_part_is_named_with_the_line(me: RankContext) -> None:
    session, model, optimizer = started(Halting(1), timeout_s=1.0)
    loader = session.loader(Numbered(), X)

    def train() -> None:
        for x, y, _ in loader:
            F.cross_entropy(model(x), y).backward()
            optimizer.step()

    with pytest.raises(PeerError) as told:
        train()
    at = r"in different exchanges \(rank 0, 2: sum on line 'halo'; rank 1: the gradient exchange of iteration 0\)"
    if me.rank != 1:
        told.match(at)
        assert told.value.__notes__ == ["raised by callback 'Halting', in before_step"]
    session.close()


class Meeting(Callback):
    """Lets all wait for each other in the middle of the forward pass, as a halo exchange does."""

    def attach(self, run: CallbackContext) -> None:
        self._line = run.lines.open("halo")
        run.model[1].register_forward_pre_hook(self._meet)

    def _meet(self, layer: nn.Module, args: Any) -> None:
        self._line.sum(torch.ones(1)).wait()


@ranks(2)
def test_shares_follow_speed_although_a_part_waits_in_the_forward_pass(me: RankContext) -> None:
    with TemporaryDirectory() as run:
        session, model, optimizer = started(Meeting(), balance="lb-bsp", overhead_budget=0.5, run_dir=run)
        model[0].register_forward_pre_hook(lambda layer, args: time.sleep(len(args[0]) * (0.004 if me.rank else 0.001)))
        loader = session.loader(Numbered(), X)
        # The same on both ranks. On a busy machine the first shares may be others.
        while session.next_shares[0] < 2 * session.next_shares[1] and loader.epoch < 60:
            for x, y, _ in loader:
                F.cross_entropy(model(x), y).backward()
                optimizer.step()
                optimizer.zero_grad()
        shares = session.next_shares
        session.close()
        assert shares[0] >= 2 * shares[1], shares
        mine = journal.read(Path(run)).ranks[me.rank]
        assert {one.line for one in mine if isinstance(one, LineRecord)} == {"gradients", "halo", "reports"}


@pytest.mark.parametrize("sync", ["bsp", "local:every=2", "shadow:ma", "asp"])
@ranks(2)
def test_what_the_run_exchanges_itself_is_counted_by_line(me: RankContext, sync: str) -> None:
    with TemporaryDirectory() as run:
        session, model, optimizer = started(sync=sync, balance="even", run_dir=run)
        steps = 0
        for x, y, _ in session.loader(Numbered(), X, drop_last=True):
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            steps += 1
        with session.evaluation_model():  # a shadow has exchanged by then
            pass
        session.close()
        found = [one for one in journal.read(Path(run)).ranks[me.rank] if isinstance(one, LineRecord)]
    lines = {name: [one for one in found if one.line == name] for name in {one.line for one in found}}
    size_bytes = sum(one.nbytes for one in model.parameters())
    name = {"bsp": "gradients", "local:every=2": "parameters", "shadow:ma": "shadow", "asp": "parameter server"}[sync]
    assert set(lines) <= {name, "reports", "parameters" if sync == "shadow:ma" else name}
    exchanges, sent_bytes = (sum(getattr(one, what) for one in lines[name]) for what in ("exchanges", "sent_bytes"))
    assert exchanges >= {"bsp": steps, "local:every=2": steps // 2, "shadow:ma": 1, "asp": steps}[sync]
    least_bytes = {"bsp": steps, "local:every=2": steps // 2, "shadow:ma": 1, "asp": steps}[sync] * size_bytes
    assert least_bytes <= sent_bytes, (least_bytes, sent_bytes, exchanges, size_bytes)
    assert sent_bytes <= 2 * exchanges * size_bytes, (sent_bytes, exchanges, size_bytes)  # numbers go along
    assert sum(one.waited_s for one in lines[name]) > 0.0


@ranks(2)
def test_what_was_exchanged_is_written_down_where_the_session_is_only_dropped(me: RankContext) -> None:
    with TemporaryDirectory() as run:
        session, model, optimizer = started(balance="even", run_dir=run)
        batches = iter(session.loader(Numbered(), X))
        for x, y, _ in (next(batches), next(batches)):
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
        batches.close()
        session._closing()  # as at the end of the program
        found = [one for one in journal.read(Path(run)).ranks[me.rank] if isinstance(one, LineRecord)]
    assert sum(one.exchanges for one in found if one.line == "gradients") >= 2
