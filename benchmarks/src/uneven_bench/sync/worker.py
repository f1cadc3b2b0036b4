"""One worker of ``uneven bench sync``, which trains every arm in turn, by stretches; rank 0 writes the results."""

import math
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F

from uneven.cluster.virtual.datasets import images
from uneven.runtime.world import SITE_VARIABLE
from uneven_bench.harness.worker import StageWorker, work
from uneven_bench.sync.arm import SyncArm, TrainingStretch
from uneven_bench.sync.arms import make, mlp
from uneven_bench.sync.cases import EVERY, GAUGE, SyncCase, seed_of
from uneven_bench.sync.exchange import EVERYBODY, ExchangeTimes, sweep

_TIMEOUT_S = 300.0
_LOOKED_AT = 2000  # held-out images of a loss
_FIRST_STEPS = 2  # steps by which an arm with waiting measures the steps of a round


def play(me: StageWorker) -> dict[str, Any]:
    """Play the case of the task."""
    run = _SyncRun(SyncCase(**me.task["case"]), me)
    result = run.play()
    run.close()
    return result


def before(task: dict[str, Any], rank: int) -> None:
    """Choose this worker's site. Flush subnormal numbers to zero in every arm, as a user would: the momentum of dead
    units decays to numbers below 1.2e-38, which cost a processor a hundred times as much. With a block momentum of
    0.875, three units in four of this network died; a step took three times as long, with the same loss."""
    case = SyncCase(**task["case"])
    os.environ[SITE_VARIABLE] = case.sites[rank] if case.sites else f"site{rank * 2 // case.workers}"
    if not torch.set_flush_denormal(True):
        sys.stderr.write("this processor keeps numbers below 1.2e-38: arms that come to have such ones are slower\n")


class _SyncRun:
    """The arms of one case, and their results."""

    def __init__(self, case: SyncCase, me: StageWorker) -> None:
        self._case = case
        self._stage = me.stage
        self._directory = me.directory
        self._connection = me.connection
        self._line = me.connection.transport
        self._gather = me.gather
        self._rank = me.rank
        found = images(me.task["data"])
        self._train = found.train
        self._test = tuple(one[:_LOOKED_AT] for one in found.test.tensors)
        self._inputs = math.prod(found.train.tensors[0].shape[1:])
        self._classes = found.classes
        self._arms: dict[str, SyncArm] = {}
        self._blocks: dict[str, list[list[TrainingStretch]]] = {name: [] for name in case.arms}  # of all ranks
        self._losses: dict[str, list[float]] = {name: [] for name in case.arms}
        self._orders = np.random.default_rng(0)  # the same on all ranks
        self._done = 0.0

    # ---------------------------------------------------------------- the course of a case
    def play(self) -> dict[str, Any]:
        """Play all rounds, and return rank 0's results."""
        case = self._case
        self._say("making the arms")
        self._make(1, twins=False)
        self._limit()
        self._say("exchanges")
        assert self._connection.roll is not None, "there are several workers"
        exchanged = {} if case.lines else sweep(self._line, self._connection.roll, _TIMEOUT_S)
        every = self._settle(exchanged.get(EVERYBODY))
        for number, seconds in enumerate(case.rounds_s):
            done, part = 0.2 + 0.6 * number / len(case.rounds_s), 0.6 / len(case.rounds_s)
            one_by_one = [name for name in case.arms if name not in case.by_turns]
            turned = part * len(case.by_turns) / len(case.arms)
            self._by_turns(case.by_turns, seconds, done, turned)
            first = number % max(1, len(one_by_one))
            for place, name in enumerate(one_by_one[first:] + one_by_one[:first]):
                self._say(name, done + turned + (part - turned) * place / len(one_by_one))
                self._round(name, seconds)
        limited = {name: len(blocks) for name, blocks in self._blocks.items()}
        self._free()
        self._stage.limit_lines(False)  # not before: a connection takes seconds to find the speed of a slow line again
        dist.barrier()
        self._catch_up()
        return {
            "exchanges": {name: asdict(one) for name, one in exchanged.items()},
            "every": every,
            "arms": {
                name: {
                    "own_pace": arm.own_pace,
                    "limited": limited[name],
                    "blocks": [[asdict(one) for one in ranks] for ranks in self._blocks[name]],
                    "losses": self._losses[name],
                }
                for name, arm in self._arms.items()
            },
        }

    def _settle(self, everybody: ExchangeTimes | None) -> int:
        """Play a round that does not count; before it the gauge is measured, to make the twins."""
        case, every = self._case, 1
        if everybody is not None and any(EVERY in who for who in case.arms.values()):
            self._say("the gauge's bytes")
            per_step = self._gauged()
            every = max(1, round(everybody.sent_bytes / per_step)) if per_step else 1
            self._free()
            self._make(every, twins=True)
            self._limit()
        for name in case.arms:
            self._say(f"{name}, settling", 0.1)
            self._round(name, case.settling_s)
        return every

    def _gauged(self) -> float:
        """Return the bytes that a worker of a separate gauge sends in a step."""
        gauge = self._arm(GAUGE, self._case.arms[GAUGE], self._directory / "gauge")
        block = gauge.train(seconds=self._case.gauge_s, steps=0)
        told = self._of_all(block)
        self._free()
        gauge.close()
        self._limit()
        return sum(one.sent_bytes for one in told) / sum(one.steps for one in told)

    def _make(self, every: int, *, twins: bool) -> None:
        for name, who in self._case.arms.items():
            if (EVERY in who) == twins:
                self._arms[name] = self._arm(name, who.replace(EVERY, str(every)), self._directory / name)
                self._losses[name].append(self._loss(name))

    def _arm(self, name: str, who: str, directory: Path) -> SyncArm:
        seed = seed_of(name)
        model = mlp(self._inputs, self._classes, seed)
        # By turns an arm would find another one's images in the processor's cache.
        order = list(self._case.arms).index(name) if name in self._case.by_turns else seed
        return make(who, model, self._train, self._case.batch, directory, order)

    def _round(self, name: str, seconds: float) -> None:
        """Train one stretch of an arm, then evaluate its model."""
        self._note({name: self._arms[name].train(seconds=seconds, steps=self._steps(name, seconds))})

    def _by_turns(self, names: list[str], seconds: float, done: float, part: float) -> None:
        """Train a round in short stretches, so that these arms meet the same machine, then evaluate their models."""
        turns = self._case.turns if names else 0
        blocks: dict[str, list[TrainingStretch]] = {name: [] for name in names}
        for turn in range(turns):
            self._say("the arms by turns", done + part * turn / turns)
            for place in self._orders.permutation(len(names)):
                name = names[place]
                steps = self._steps(name, seconds / turns)
                blocks[name].append(self._arms[name].train(seconds=seconds / turns, steps=steps, through=True))
        self._note({name: TrainingStretch.of(each) for name, each in blocks.items()})

    def _note(self, blocks: dict[str, TrainingStretch]) -> None:
        """Note a round of some arms, and evaluate their models on free links and processors."""
        for name, block in blocks.items():
            self._blocks[name].append(self._of_all(block))
        if blocks:
            self._free()
            for name in blocks:
                self._losses[name].append(self._loss(name))
            self._limit()

    def _of_all(self, block: TrainingStretch) -> list[TrainingStretch]:
        return [TrainingStretch(**told) for told in self._gather(asdict(block))]

    def _steps(self, name: str, seconds: float) -> int:
        """Return the steps that fit into ``seconds``, by the newest stretch; whole blocks of the policy. Same on all
        ranks."""
        every = self._arms[name].every
        if not self._blocks[name]:
            return -(-_FIRST_STEPS // every) * every
        newest = self._blocks[name][-1]
        a_step_s = max(one.seconds for one in newest) / newest[0].steps
        return max(1, round(seconds / a_step_s / every)) * every

    def _catch_up(self) -> None:
        """Train every arm up to the comparison at equal samples. If all workers step together, the loss does not depend
        on the speed of links and processors, so both are free here. Other arms have come that far under the limits, or
        are not compared."""
        wanted = self._case.equal_steps
        for number, (name, arm) in enumerate(self._arms.items()):
            self._say(f"{name}, catching up", 0.8 + 0.2 * number / len(self._arms))
            missing = wanted - sum(ranks[0].steps for ranks in self._blocks[name])
            while not arm.own_pace and missing > 0:
                piece = min(missing, self._case.look_every or missing)
                block = arm.train(seconds=0.0, steps=-(-piece // arm.every) * arm.every)
                missing -= block.steps
                self._blocks[name].append(self._of_all(block))
                self._losses[name].append(self._loss(name))

    # ---------------------------------------------------------------- parts of it
    def _limit(self) -> None:
        case = self._case
        self._stage.have(case.shares, () if math.isinf(case.mbit_per_s) else (case.mbit_per_s,) * case.workers)
        self._stage.limit_lines(True)
        dist.barrier()

    def _free(self) -> None:
        dist.barrier()
        self._stage.lift()
        if not math.isinf(self._case.mbit_per_s):
            self._stage.have((), (math.inf,) * self._case.workers)
        dist.barrier()

    def _loss(self, name: str) -> float:
        """Return the loss of the model that counts, on held-out images; the same on all ranks."""
        arm, found = self._arms[name], math.nan
        with arm.counted():
            if self._rank == 0:
                with torch.no_grad():
                    found = F.cross_entropy(arm.model(self._test[0]), self._test[1]).item()
            dist.barrier()
        return float(self._gather(found)[0])

    def _say(self, what: str, done: float = 0.0) -> None:
        self._done = max(self._done, done)
        self._stage.say(what, self._done)

    def close(self) -> None:
        """Close every arm, on all ranks in the same order."""
        for arm in self._arms.values():
            arm.close()


if __name__ == "__main__":
    work(play, before)
