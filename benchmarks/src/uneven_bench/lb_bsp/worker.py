"""One worker of ``uneven bench lb-bsp``: every arm of its cases in turn, block by block; rank 0 writes the results."""

import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from uneven.policy.balance import balancers
from uneven.policy.core.registry import parse_spec
from uneven.policy.core.views import Limits
from uneven_bench.balancers.earliest import earliest
from uneven_bench.balancers.rivals import Lbb
from uneven_bench.balancers.rivals.cubic import Cubic
from uneven_bench.harness.worker import StageWorker, work
from uneven_bench.lb_bsp.arms import Arm, Block, DDPArm, SessionArm, TogetherArm
from uneven_bench.lb_bsp.cases import LIMIT, OURS, SLOW, TOGETHER, LbBspCase, corrected, oracle_costs
from uneven_bench.lb_bsp.costs import affine, cubic, transfer_s
from uneven_bench.lb_bsp.rival_arms import AccumulateArm, BackupArm, FlexRRArm, RuleArm
from uneven_bench.workloads.base import TrainingWorkload
from uneven_bench.workloads.named import workload

_RIVAL = "rival:"


def play(me: StageWorker) -> dict[str, Any]:
    """Play the cases one after the other, and return their results by name."""
    found = {}
    for case in (LbBspCase(**one) for one in me.task["cases"]):
        me.stage.scene = case.name
        run = _LbBspRun(case, workload(case.workload, me.task["data"]), me)
        found[case.name] = run.play()
        run.close()
    return found


class _LbBspRun:
    """The arms of one case, and their results."""

    def __init__(self, case: LbBspCase, work: TrainingWorkload, me: StageWorker) -> None:
        stage, line, directory = me.stage, me.connection.transport, me.directory / case.name
        self._case = case
        self._work = work
        self._gather = me.gather
        self._stage = stage
        self._rank = line.rank
        self._size = line.size
        even, rest = divmod(case.global_batch, line.size)
        self._even = tuple(even + (rank < rest) for rank in range(line.size))
        self._profiles: list[Cubic] = []
        self._costs: list[dict[str, float]] = []
        self._worked_s: float | None = None  # of the oracle's arm in an iteration of its last block
        self._kept: dict[str, dict[int, dict[str, torch.Tensor]]] = {}
        self._settled: dict[str, list[float]] = {}
        self._arms: dict[str, Arm] = {}
        # Arms that profile under limited shares come last, in an order that all ranks agree on.
        late = {name: who for name, who in case.arms.items() if who.startswith(f"{_RIVAL}lbb")}
        for name, who in case.arms.items():
            if name not in late:
                self._arms[name] = self._make(who, directory / name)
        stage.have(case.shares_at(0), case.mbit_at(0))
        if case.profile_s:
            stage.say("measuring costs", 0.0)
            self._costs = self._measure()
        if late:
            stage.say("taking LBB's profile", 0.0)
            own = cubic(work, case.global_batch, case.profile_s or 4.0)
            self._profiles = [Cubic(*told) for told in self._gather([own.a0, own.a1, own.a2, own.a3])]
        for name, who in late.items():
            self._arms[name] = self._make(who, directory / name)
        self._arms = {name: self._arms[name] for name in case.arms}

    def _make(self, who: str, journal: Path) -> Arm:
        case, work, even = self._case, self._work, self._even
        model = work.make()
        if who in ("ddp", LIMIT):
            return DDPArm(model, work, even, case.block)
        if who.startswith(_RIVAL):
            spec = who.removeprefix(_RIVAL)
            rule = Lbb(profile=self._profiles) if spec == "lbb" else balancers.resolve(spec)
            every = parse_spec(spec)[1].get("epoch", 1)
            assert isinstance(every, int)
            return RuleArm(model, work, even, case.block, rule=rule, every=every)
        name, options = parse_spec(who)
        given = (model, work, case.global_batch, case.block)
        if name in ("flexrr", "accumulate", "backup"):
            (number,) = options.values()
            assert isinstance(number, int)
            grain = max(even[0] // number, 1)
            if name == "flexrr":
                return FlexRRArm(model, work, even, case.block, grain=grain)
            return AccumulateArm(*given, grain=grain) if name == "accumulate" else BackupArm(*given, spares=number)
        if name == TOGETHER:
            return TogetherArm(*given, balance=OURS, folder=journal)
        return SessionArm(*given, balance=who, folder=journal)

    def _measure(self) -> list[dict[str, float]]:
        """Return every worker's cost, its side of an exchange included."""
        computing = self._gather(asdict(affine(self._work, self._case.global_batch, self._case.profile_s)))
        exchanging_s = self._gather(transfer_s(self._work, self._case.global_batch))
        return [{**cost, "overhead_s": cost["overhead_s"] + s} for cost, s in zip(computing, exchanging_s, strict=True)]

    def play(self) -> dict[str, Any]:
        """Play all rounds, and return rank 0's results."""
        for _ in range(self._case.settling):
            self._stage.say("settling", 0.0)
            self._turn(0)
            for name, arm in self._arms.items():
                if arm.settles or name == LIMIT:
                    self._settled.setdefault(name, []).append(self._block(name).wall_s)
        blocks = self._interleave()
        self._stage.lift()
        if self._case.catch_up:
            self._stage.say("catching up", 1.0)
            for name in self._behind():
                self._block(name)
        split = {name: list(arm.split) for name, arm in self._arms.items() if arm.split}
        self._stage.say("accuracies", 1.0)
        return {
            "about": self._work.about,
            "costs": self._costs,
            "blocks": {
                name: self._gather({number: asdict(one) for number, one in some.items()})
                for name, some in blocks.items()
            },
            "settled": self._settled,
            "split": split,
            "accuracy": self._accuracies(),
        }

    def _turn(self, number: int) -> None:
        """Set this worker's limits of a round, and the oracle's split for it."""
        case = self._case
        self._stage.have(case.shares_at(number), case.mbit_at(number))
        arm = self._arms.get(LIMIT)
        if isinstance(arm, DDPArm) and self._costs:
            if self._worked_s is not None:
                cost, share = self._costs[self._rank], case.shares_at(0)[self._rank]
                self._costs = self._gather(corrected(cost, self._worked_s, arm.split[self._rank], share))
            costs = zip(*oracle_costs(self._costs, case.shares_at(0), case.shares_at(number)), strict=True)
            seconds = [Cubic(*cost).seconds for cost in costs]
            arm.take(earliest(seconds, case.global_batch, Limits.uniform(self._size, case.global_batch)))

    def _interleave(self) -> dict[str, dict[int, Block]]:
        """Return arm → round → block."""
        case, names = self._case, list(self._arms)
        blocks: dict[str, dict[int, Block]] = {name: {} for name in names}
        started_s = time.monotonic()
        for number in range(case.rounds):
            self._turn(number)
            for name in names[number % len(names) :] + names[: number % len(names)]:
                if name not in SLOW or number % case.rare_every == 0:
                    blocks[name][number] = self._block(name)
            spent = 0.0 if case.changing else self._gather((time.monotonic() - started_s) / case.seconds)[0]
            done = max(spent, (number + 1) / case.rounds)
            self._stage.say(f"round {number + 1}", min(done, 1.0))
            if done >= 1.0:
                break
        return blocks

    def _block(self, name: str) -> Block:
        arm = self._arms[name]
        block = arm.block()
        if name == LIMIT:
            self._worked_s = block.worked_s
        self._keep(name, arm)
        return block

    def _keep(self, name: str, arm: Arm) -> None:
        """Keep a copy of the model on one of the ranks, for an evaluation at full speed."""
        look = self._case.look
        if look and arm.blocks % look == 0 and (arm.blocks // look) % self._size == self._rank:
            weights = {key: tensor.detach().clone() for key, tensor in arm.model.state_dict().items()}
            self._kept.setdefault(name, {})[arm.blocks] = weights

    def _behind(self) -> Iterator[str]:
        """Yield arms with less training than the longest trained, a block at a time, so that accuracies compare."""
        most = max(arm.blocks for arm in self._arms.values())
        for name, arm in self._arms.items():
            while arm.blocks < most:
                yield name

    def _accuracies(self) -> dict[str, dict[str, float]]:
        """Return arm → blocks trained → held-out accuracy; without copies, at the end only."""
        model = self._work.make()
        own: dict[str, dict[str, float]] = {}
        for name, arm in self._arms.items():
            found = {}
            for blocks, weights in self._kept.get(name, {}).items():
                model.load_state_dict(weights)
                found[str(blocks)] = self._work.accuracy(model)
            if not self._case.look and self._rank == 0:
                found[str(arm.blocks)] = self._work.accuracy(arm.model)
            own[name] = found
        dist.barrier()
        merged: dict[str, dict[str, float]] = {name: {} for name in own}
        for told in self._gather(own):
            for name, found in told.items():
                merged[name].update(found)
        return merged

    def close(self) -> None:
        """Close every arm, on all ranks in the same order."""
        for arm in self._arms.values():
            arm.close()


if __name__ == "__main__":
    work(play)
