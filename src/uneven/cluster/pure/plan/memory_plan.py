"""The division of a model's memory among machines, and of the batches by their speed.

torch's ``fully_shard`` gives each worker an equal part of the model. So k of all K workers hold k / K of it, and a
machine with more memory holds a larger part with more workers. The plan has the fewest workers that fit, because each
one needs memory for its passes, too.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from uneven.cluster.pure.describe.spec import ClusterSpec
from uneven.cluster.pure.plan.reasons import listed
from uneven.policy.core.apportion import proportional
from uneven.policy.core.views import Limits

MOST_WORKERS = 8  # on one machine [default]
_NAMED = 4  # machines that a reason names


@dataclass(frozen=True, slots=True)
class MachineMemory:
    """A machine that may hold a part of a model."""

    name: str
    memory_bytes: float  # inf: without a limit
    speed: float  # samples/s
    samples: float = math.inf  # the largest batch that fits


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """The result, by machine; a division that does not fit has no parts.

    Attributes:
        workers: number of workers on each machine.
        held_bytes: memory that the machine's workers use.
        samples: part of the global batch.
        whole: each worker holds the whole model, so nothing needs to be divided.
        short: the reason why nothing fits; "" if it does.
    """

    workers: tuple[int, ...] = ()
    held_bytes: tuple[int, ...] = ()
    samples: tuple[int, ...] = ()
    whole: bool = False
    short: str = ""

    def told(self, machines: Sequence[MachineMemory]) -> str:
        """Return the result as text: ``fits: 24 + 12 GB with fully_shard, 2 workers on node-a and 1 on node-b``."""
        if self.short:
            return f"does not fit: {self.short}"
        if self.whole:
            return f"fits: {_gb(max(self.held_bytes))} GB on each worker, without shards"
        those = list(zip(machines, self.workers, strict=True))
        several = [f"{k} workers on {one.name}" for one, k in those if k > 1]
        rest = ", and 1 on each other machine" if 0 < len(several) < len(those) else ""
        started = f": start {_few(several)}{rest}" if several else ", one worker on each machine"
        return f"fits: {_sum(self.held_bytes)} GB with fully_shard{started}"


def machines(spec: ClusterSpec) -> list[MachineMemory]:
    """Return the machines of a cluster that are there at the start, at their speed at time 0."""
    there = [node for node in spec.nodes if node.name in spec.initial_members]
    batch = max(1.0, spec.workload.global_batch / len(there))
    return [
        MachineMemory(
            name=node.name,
            memory_bytes=math.inf if node.memory_bytes is None else node.memory_bytes,
            speed=batch * node.available(0.0) / max(spec.cost(node).seconds(round(batch)), 1e-9),
            samples=math.inf if node.memory_samples is None else node.memory_samples,
        )
        for node in there
    ]


def divided(those: Sequence[MachineMemory], state_bytes: int, pass_bytes: int, global_batch: int) -> MemoryPlan:
    """Divide a model by memory and a batch by speed.

    Args:
        those: the machines, at least one.
        state_bytes: of the whole model: its parameters, their gradients and the optimizer's state.
        pass_bytes: that each worker needs in addition, such as its largest layer, activations and libraries.
        global_batch: samples of all machines together in each step.

    Example:
        >>> a, b = MachineMemory("a", 24e9, speed=3.0), MachineMemory("b", 12e9, speed=1.0)
        >>> divided([a, b], 36 * 10**9, 0, 64)
        MemoryPlan(workers=(2, 1), held_bytes=(24000000000, 12000000000), samples=(48, 16), whole=False, short='')
    """
    samples = _samples(those, global_batch)
    if isinstance(samples, str):
        return MemoryPlan(short=samples)
    ones = (1,) * len(those)
    all_of_it = state_bytes + pass_bytes
    if all(one.memory_bytes >= all_of_it for one in those):
        return MemoryPlan(workers=ones, held_bytes=(all_of_it,) * len(those), samples=samples, whole=True)
    for total in range(len(those), MOST_WORKERS * len(those) + 1):
        each = -(-state_bytes // total) + pass_bytes  # rounded up, as torch pads the last part
        most = tuple(int(min(one.memory_bytes, MOST_WORKERS * each) // each) for one in those)
        if min(most) >= 1 and sum(most) >= total:
            workers = proportional(most, total, Limits(lower=ones, upper=most))
            return MemoryPlan(workers=workers, held_bytes=tuple(k * each for k in workers), samples=samples)
    return MemoryPlan(short=_short(those, state_bytes, pass_bytes))


def _samples(those: Sequence[MachineMemory], global_batch: int) -> tuple[int, ...] | str:
    """Return the parts of a batch by speed, or the reason why their activations do not fit."""
    upper = tuple(int(min(global_batch, one.samples)) for one in those)
    if sum(upper) < global_batch:
        return (
            f"a global batch of {global_batch:,} samples; the machines' memory_samples add up to {sum(upper):,}: take "
            "smaller batches and accumulate gradients"
        )
    lower = (int(global_batch >= len(those)),) * len(those)
    return proportional([one.speed for one in those], global_batch, Limits(lower=lower, upper=upper))


def _short(those: Sequence[MachineMemory], state_bytes: int, pass_bytes: int) -> str:
    """Return the reason why no division fits."""
    needed, there = state_bytes + pass_bytes * len(those), sum(one.memory_bytes for one in those)
    passes = f" ({_gb(state_bytes)} of the model, {_gb(pass_bytes)} for the passes of each worker)" * (pass_bytes > 0)
    has = _few([f"{one.name} has {_gb(one.memory_bytes)}" for one in those])
    needs = f"needs {_gb(needed)} GB{passes}; {has}"
    if there < needed:
        return f"{needs}: {_gb(needed - there)} GB short"
    least = min(those, key=lambda one: one.memory_bytes)
    return (
        f"{needs}: enough in unequal parts. fully_shard makes equal ones, and with at most {MOST_WORKERS} workers on a "
        f"machine none fits {least.name}: leave it out, or give it more memory"
    )


def _gb(nbytes: float) -> str:
    return f"{nbytes / 1e9:.3g}"


def _sum(held_bytes: Sequence[int]) -> str:
    """Return the memory of machines, equal ones together: ``2 × 24 + 12``."""
    counted = Counter(_gb(one) for one in held_bytes)
    return " + ".join(f"{many} × {one}" if many > 1 else one for one, many in counted.items())


def _few(words: Sequence[str]) -> str:
    return listed([*words[:_NAMED], *([f"{len(words) - _NAMED} more"] if len(words) > _NAMED else [])])
