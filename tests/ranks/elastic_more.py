"""Trains in an elastic run in other ways than step by step, and writes down whose samples each step holds.

Usage: elastic_more.py WAY FOLDER EPOCHS [FAULT …]; a fault is kill@W:N (before worker W's exchange number N),
after@W:N (right after it), late@W:N (takes it for failed, when another one has not), or door@N (nobody makes exchange N
before somebody asks to join).

WAY is soap (refreshed at every step), kfac (every fourth), muon, together (three batches for each exchange), summed
(three exchanges for each step), unused (parameters), part (a separate sum), pieces (a separate gather or all-to-all),
weighted (batches count by the weights of their samples), steps (no loader, a global batch), own (no loader, each
worker's own number of samples), or profiled (before the training).
"""

import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from elastic_script import LR, MOMENTUM, N, await_another, await_others, be_late, dataset, wait_at_door
from session_parts import Moving
from torch import Tensor, nn

import uneven
from uneven_bench.inside import Inside, inside

X, TOGETHER = 25, 3
STEPS, OWN, MEANT = 40, 3, 30


class Branches(nn.Module):
    """Which parameters a pass uses depends on the samples in it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 2), nn.Linear(8, 2)
        self.never = nn.Linear(8, 2)

    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        rare = ids % 16 == 0
        out = self.first(x)
        return out + rare.unsqueeze(1) * self.second(x) if rare.any() else out


class Scaling(uneven.Callback):
    """Divides each gradient by the size of the inputs, over all samples of the step and averaged over steps."""

    def __init__(self, way: str, faults: list[str]) -> None:
        self.faults, self.total = faults, self.summed if way == "part" else self.in_pieces
        self.average = torch.ones(8, dtype=torch.float64)
        self.inputs, self.ids = torch.zeros(0, 8), []
        self.told: list[tuple[int, ...]] = []

    def attach(self, run: uneven.CallbackContext) -> None:
        self.line, self.layer = run.lines.open("scaling"), run.model[0]

    def members_changed(self, members: tuple[int, ...]) -> None:
        self.told.append(members)

    def gradients_ready(self, step: uneven.Step, optimizer: torch.optim.Optimizer) -> None:
        wait_for_faults(self.inside, self.faults)
        mine = torch.cat((self.inputs.square().sum(0) * bool(step.samples), torch.tensor([float(step.samples)])))
        mine = self.total(mine, step)  # those that are there, and how many they are, whoever is lost meanwhile
        self.log.write(json.dumps([self.inside.exchanges - 2, self.ids * bool(step.samples)]) + "\n")
        self.average.lerp_(mine[:-1] / mine[-1], 0.1)
        self.layer.weight.grad.div_(self.average.sqrt())
        die_after(self.inside, self.faults, ".part")

    def summed(self, mine: torch.Tensor, step: uneven.Step) -> torch.Tensor:
        self.line.sum(mine).wait()
        return mine

    def in_pieces(self, mine: torch.Tensor, step: uneven.Step) -> torch.Tensor:
        members, me = self.line.members, self.elastic.membership.worker
        into = [torch.full_like(mine, torch.nan) for _ in members]
        if step.iteration % 2:
            there = self.line.gather(mine, into).wait()
        else:
            there = self.line.all_to_all([mine * (one + 1) for one in members], into).wait()
            into = [one / (me + 1) for one in into]
        assert me in there
        assert all(one in there or not piece.any() for one, piece in zip(members, into, strict=True))
        return torch.stack(into).sum(0)

    def state_dict(self) -> dict[str, torch.Tensor]:
        return {"average": self.average}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        self.average.copy_(state["average"])


class Faulty:
    """A preconditioner with faults before each exchange of its own."""

    faults: list[str]

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        self.told = []

    def attach(self, run: uneven.CallbackContext) -> None:
        super().attach(run)
        self.line = run.lines.opened[0]

    def members_changed(self, members: tuple[int, ...]) -> None:
        self.told.append(members)

    def _begin_refresh(self, *args: Any) -> None:
        wait_for_faults(self.inside, self.faults)
        super()._begin_refresh(*args)

    def bring_up_to_date(self) -> None:
        if isinstance(self, uneven.KFAC):
            wait_for_faults(self.inside, self.faults)
        super().bring_up_to_date()

    def _land(self) -> None:
        wait_for_faults(self.inside, self.faults)
        super()._land()


class FaultyKFAC(Faulty, uneven.KFAC):
    """K-FAC."""


class FaultySOAP(Faulty, uneven.SOAP):
    """SOAP."""


class FaultyMuon(Faulty, uneven.Muon):
    """Muon."""


PRECONDITIONED = ("kfac", "soap", "muon")


def preconditioner(
    way: str, soap: type[uneven.SOAP], kfac: type[uneven.KFAC], muon: type[uneven.Muon] = uneven.Muon
) -> uneven.Callback | None:
    """The one of this way; by these classes. Owners by size alone, so that each of four has a square to begin with."""
    if way == "muon":
        return muon(assignment_strategy="round-robin")
    owners = {"assignment_strategy": "compute", "colocate_factors": False}
    if way == "soap":
        return soap(inv_update_steps=1, **owners)
    return kfac(damping=0.1, kl_clip=0.01, inv_update_steps=4, **owners) if way == "kfac" else None


def stepping(way: str, net: nn.Module) -> torch.optim.Optimizer:
    """The optimizer of this way: SOAP and Muon have momentum of their own."""
    return torch.optim.SGD(net.parameters(), lr=LR, momentum=0.0 if way in ("soap", "muon") else MOMENTUM)


def parts_of(way: str, faults: list[str]) -> list[uneven.Callback]:
    if way in ("part", "pieces"):
        return [Scaling(way, faults)]
    part = preconditioner(way, FaultySOAP, FaultyKFAC, FaultyMuon)
    if part is None:
        return []
    part.faults = faults
    return [part]


class Fading(nn.Module):
    """Counts its passes in a buffer that is in no checkpoint."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("factor", torch.ones(()), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.factor *= 0.99
        return x * self.factor


def model(way: str) -> nn.Module:
    """Begins the same everywhere."""
    torch.manual_seed(0)
    layers: tuple[nn.Module, ...] = nn.Linear(8, 6), nn.Tanh(), Fading(), nn.Linear(6, 2)
    if way in PRECONDITIONED:  # one process has other passes than each worker
        layers = (*layers[:2], layers[3])
    if way == "muon":  # a matrix for each of four workers
        sides = (8, 6, 6, 6, 2)
        layers = tuple(nn.Linear(a, b, bias=False) for a, b in pairwise(sides))
    return (Branches() if way == "unused" else nn.Sequential(*layers)).double()


def output(way: str, net: nn.Module, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    return net(x, ids) if way == "unused" else net(x)


def weights(ids: torch.Tensor) -> torch.Tensor:
    """What each sample counts, where samples do not count alike."""
    return (1 + ids % 3).double()


def loss_of(way: str, session: uneven.Session, net: nn.Module, x: Tensor, y: Tensor, ids: Tensor) -> Tensor:
    """The loss, and what has to be said of it."""
    if way != "weighted":
        return F.cross_entropy(output(way, net, x, ids), y)
    count = weights(ids)
    with session.loss_mean(count.sum()):
        out = net(x)
        if inside(session).part.iteration == MEANT:  # its exchange has to wait for that of the counts
            assert session.mean(1.0) == 1.0
        return (F.cross_entropy(out, y, reduction="none") * count).sum() / count.sum()


def drawn(session: uneven.Session, way: str) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Batches of a script without a loader."""
    how = {"global_batch_size": X} if way == "steps" else {"samples": OWN + session.worker}
    for _ in range(session.steps_taken(**how), STEPS):
        if way == "steps":
            said = session.local_batch_size(X)
        with session.step(**how) as n:
            assert way == "own" or n == said
            part = inside(session).part
            assert part.size == (X if way == "steps" else sum(OWN + one for one in part.members))
            yield dataset()[(part.start + part.offset(session.worker) + torch.arange(n)) % N]


def wait_for_faults(own: Inside, faults: list[str]) -> None:
    """Before the next exchange of this worker."""
    elastic, number = own.elastic, own.exchanges
    worker = elastic.membership.worker
    if f"door@{number}" in faults:
        wait_at_door(elastic.membership, Path(sys.argv[2]))
    if f"late@{worker}:{number}" in faults:
        be_late(own)
    if f"kill@{worker}:{number}" in faults:
        for suffix in (".jsonl", ".part"):
            await_others(Path(sys.argv[2]), worker, elastic.members, 1, suffix)
        os.kill(os.getpid(), signal.SIGKILL)


def die_after(own: Inside, faults: list[str], suffix: str) -> None:
    """Right after an exchange of this worker, which is written down in a file with this suffix."""
    worker = own.elastic.membership.worker
    if f"after@{worker}:{own.exchanges - 1}" in faults:
        await_another(Path(sys.argv[2]) / f"{worker}{suffix}")
        os.kill(os.getpid(), signal.SIGKILL)


def main(way: str, folder: Path, epochs: int, faults: list[str]) -> None:
    net = model(way)
    optimizer = stepping(way, net)
    parts = parts_of(way, faults)
    session = uneven.Session(balance="lbb" if way == "profiled" else Moving(), callbacks=parts)
    session.setup(net, optimizer, find_unused_parameters=way == "unused")
    alone = way in ("steps", "own")
    loader = None if alone else session.loader(dataset(), global_batch_size=X)
    if way == "profiled":
        session.profile(lambda batch: F.cross_entropy(net(batch[0]), batch[1]).backward(), within_s=2.0)
    own = inside(session)
    elastic = own.elastic
    for one in parts:
        one.inside, one.elastic, one.log = own, elastic, (folder / f"{session.worker}.part").open("a", buffering=1)
    log = (folder / f"{session.worker}.jsonl").open("a", buffering=1)
    together, held = TOGETHER if way in ("together", "summed") else 1, []
    for _ in range(0 if alone else loader.epoch, 1 if alone else epochs):
        for x, y, ids in drawn(session, way) if alone else loader:
            part = inside(session).part
            mine = ids.tolist() if part.batch(session.worker) else []
            first = own.exchanges - (len(held) if way == "summed" else 0)  # of the step
            held.append([first, part.epoch, part.iteration, part.size, mine])
            ends = len(held) == together or part.end == N
            if way == "weighted":
                wait_for_faults(own, faults)
            if way == "summed":
                wait_for_faults(own, faults)
            with nullcontext() if ends or way == "summed" else session.no_sync():
                loss = loss_of(way, session, net, x, y, ids)
                for one in parts:
                    one.inputs, one.ids = x, ids.tolist()
                if ends and way != "summed":
                    wait_for_faults(own, faults)
                loss.backward()
            if ends:
                for one in held:
                    log.write(json.dumps(one) + "\n")
                held = []
                die_after(own, faults, ".jsonl")
                optimizer.step()
                optimizer.zero_grad()
    torch.save(net.state_dict(), folder / f"{session.worker}.pt")
    (folder / f"{session.worker}.profile").write_text(repr(getattr(session._loop.context.balancer, "_profile", None)))
    for one in parts:
        assert one.told[-1] == elastic.members == one.line.members, one.told
    session.close()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
