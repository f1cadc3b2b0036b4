"""One worker of ``uneven bench preconditioners``, which runs its task arm by arm; rank 0 writes the results."""

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

import uneven
from uneven.testing.callbacks import alone
from uneven_bench.harness.worker import StageWorker, work
from uneven_bench.preconditioners.arms import (
    DAMPING,
    KINDS,
    LR,
    KfacPytorch,
    PartArm,
    Plain,
    StepArm,
    by_axes,
    rival,
    under,
)
from uneven_bench.preconditioners.models import MODELS, TimedModel


def play(me: StageWorker) -> Any:
    """Run the task."""
    return {"steps": steps, "exact": exact, "unequal": unequal, "links": links}[me.task["what"]](me)


def shares(workers: int) -> dict[str, float]:
    return {"1": 1.0, "1/2": 0.5, "1/P": 1.0 / workers}


def steps(me: StageWorker) -> dict[str, Any]:
    """Return seconds of each kind of step of each arm of one model, bytes and memory."""
    task, stage = me.task, me.stage
    timed, size = MODELS[task["model"]], dist.get_world_size()
    batch = timed.each * size
    arms: dict[str, StepArm] = {}

    def add(name: str, make: Callable[[Any], StepArm]) -> None:
        torch.manual_seed(0)
        arms[name] = make(timed.make())

    for name in ("sgd", "adamw", "muon"):
        add(name, partial(Plain, name=name))
    add("session", lambda model: PartArm(model, None, batch))
    add("soap", lambda model: PartArm(model, uneven.SOAP(inv_update_steps=10, grad_worker_fraction=1 / size), batch))
    add("uneven.Muon", lambda model: PartArm(model, uneven.Muon(), batch))
    add("uneven.Muon float32", lambda model: PartArm(model, uneven.Muon(ns_dtype=torch.float32), batch))
    for label in task["shares"]:
        f = shares(size)[label]
        add(f"ours {label}", partial(_kfac, batch=batch, share=f))
        if rival() is not None:
            add(f"kfac-pytorch {label}", partial(KfacPytorch, share=f))
    found: dict[str, dict[str, list[float]]] = {name: {kind: [] for kind in KINDS} for name in arms}
    torch.manual_seed(1 + dist.get_rank())
    for number in range(task["repeats"] + 1):  # the first repeat warms up
        stage.say(task["model"], number / (task["repeats"] + 1))
        for kind in ("refresh", "plain", "factor"):
            x, y = timed.draw(timed.each)
            for name, arm in arms.items():
                if kind != "plain" and not _second_order(name):
                    continue
                arm.due(kind)
                dist.barrier()
                began_s = time.perf_counter()
                arm.step(x, y)
                dist.barrier()
                if number:
                    found[name][kind].append(time.perf_counter() - began_s)
    medians = {
        name: {kind: statistics.median(them) for kind, them in kinds.items() if them} for name, kinds in found.items()
    }
    whole = {name: arm for name, arm in arms.items() if name.startswith("ours")}
    result = {"seconds": medians, "memory_share": _memory(me, next(iter(whole.values())))}
    result["bytes"] = {
        name: _bytes(me, arm, timed.draw(timed.each))
        for name, arm in arms.items()
        if _second_order(name) or name.startswith("uneven.Muon")
    }
    for arm in arms.values():
        arm.close()
    return result


def _kfac(model: torch.nn.Module, batch: int, share: float) -> StepArm:
    part = uneven.KFAC(damping=DAMPING, factor_update_steps=10, inv_update_steps=100, grad_worker_fraction=share)
    return PartArm(model, part, batch)


def _second_order(name: str) -> bool:
    return name.startswith(("ours", "kfac-pytorch", "soap"))


def _bytes(me: StageWorker, arm: Any, batch: Any) -> dict[str, float]:
    """Return the bytes that a worker sends in each kind of step, mean over workers."""
    found = {}
    if isinstance(arm, KfacPytorch):
        arm.count()
    for kind in KINDS:
        arm.due(kind)
        before = arm.sent_bytes
        arm.step(*batch)
        found[kind] = statistics.fmean(me.gather(arm.sent_bytes - before))
    if isinstance(arm, KfacPytorch):
        arm.uncount()
    return found


def _memory(me: StageWorker, arm: Any) -> float:
    """Return the numbers that the fullest worker keeps for factors, over those of all factors as squares."""
    part = arm.part
    own = part._sums.numel() + sum(one.numel() for one in part._kept.values())
    return float(max(me.gather(own)) / sum(side**2 for one in part.works for side in one.item.sides))


def exact(me: StageWorker) -> dict[str, Any]:
    """Return the largest difference of weights to one process after 12 steps on unequal shares; and to kfac-pytorch,
    per step."""
    rank, task, parts = me.rank, me.task, me.task["shares"]
    batch, found = 16 * len(parts), {}
    own = [batch * one // sum(parts) for one in parts]
    own[0] += batch - sum(own)
    how: dict[str, Any] = {"factor_update_steps": 2, "inv_update_steps": 4, "grad_worker_fraction": 1 / len(parts)}
    makers = {
        "kfac": lambda: uneven.KFAC(damping=DAMPING, **how),
        "soap": lambda: uneven.SOAP(**how),
        "muon": uneven.Muon,
    }
    for name, make in makers.items():
        torch.manual_seed(0)
        model = _exact_model()
        arm = PartArm(model, make(), batch, balance=f"static:shares={'/'.join(map(str, own))}")
        for number in range(12):
            torch.manual_seed(number)
            x, y = _exact_batch(batch)
            mine = slice(sum(own[:rank]), sum(own[: rank + 1]))
            arm.step(x[mine], y[mine])
        arm.close()
        found[name] = 0.0
        if rank == 0:
            whole = _alone(make(), batch)
            found[name] = max(float((a - b).abs().max()) for a, b in zip(model.parameters(), whole, strict=True))
        dist.barrier()
    if rival() is not None and task["rival"]:
        found["kfac-pytorch"] = _against_rival(batch // len(parts), undone=True)
        found["kfac-pytorch, its G as it is"] = _against_rival(batch // len(parts), undone=False)
    return found


def _exact_model() -> torch.nn.Module:
    """Return a model in float64: SOAP divides directions without a gradient by their size, noise in float32."""
    return torch.nn.Sequential(
        torch.nn.Conv2d(2, 8, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.Conv2d(8, 8, 3, stride=2),
        torch.nn.Flatten(),
        torch.nn.Linear(72, 32),
        torch.nn.Tanh(),
        torch.nn.Linear(32, 10),
    ).double()


def _exact_batch(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(n, 2, 8, 8, dtype=torch.float64), torch.randint(0, 10, (n,))


def _alone(part: Any, batch: int) -> list[torch.Tensor]:
    """Return weights of one process after these steps, without a session, one tensor of any size for each."""
    torch.manual_seed(0)
    model = _exact_model()
    stepping = under(part, model)
    if isinstance(part, uneven.Muon):  # torch's is the reference
        stepping[0] = torch.optim.Muon(by_axes(model)[0], lr=LR, weight_decay=0.1)
        part = _OwnTime()
    worker = alone(model, stepping[0], part)
    for number in range(12):
        torch.manual_seed(number)
        worker.step(*_exact_batch(batch))
        for one in stepping[1:]:
            one.step()
            one.zero_grad()
    return list(model.parameters())


def _against_rival(each: int, undone: bool) -> float:
    """Return the largest relative distance of a layer's preconditioned gradient to kfac-pytorch's, from equal weights.
    kfac-pytorch averages over workers the G of their own mean losses, which on P equal workers is P² times that of one
    process. ``undone``: its ``grad_scaler`` undoes that, so it equals one worker's."""
    size, worst = dist.get_world_size(), 0.0
    for name in ("resnet20", "mlp"):
        timed = MODELS[name]
        gradients: dict[StepArm, list[torch.Tensor]] = {}
        torch.manual_seed(0)
        how: dict[str, Any] = {"damping": 1e-7, "kl_clip": 0.001}
        undo = {"grad_scaler": lambda: float(size)} if undone else {}
        theirs = KfacPytorch(timed.make(), 1.0, factor_update_steps=1, inv_update_steps=3, **how, **undo)
        part = uneven.KFAC(scaling="compat", inv_update_steps=3, grad_worker_fraction=1.0, **how)
        ours = PartArm(timed.make(), part, each * size)
        both: tuple[Any, ...] = (theirs, ours)
        for arm in both:

            def note(*_: object, arm: Any = arm, gradients: dict[Any, Any] = gradients) -> None:
                gradients[arm] = _by_layer(arm.model)

            arm.optimizer.register_step_pre_hook(note)
        for number in range(7):
            ours.model.load_state_dict(theirs.model.state_dict())
            torch.manual_seed(100 * number + dist.get_rank())
            x, y = timed.draw(each)
            for one in both:
                one.step(x, y)
            for a, b in zip(*gradients.values(), strict=True):
                worst = max(worst, float((a - b).norm() / b.norm().clamp_min(1e-12)))
        ours.close()
    return worst


def _by_layer(model: torch.nn.Module) -> list[torch.Tensor]:
    """Return each module's gradients as one flat row: a weight and its bias are preconditioned as one matrix."""
    every = [[one.grad for one in module._parameters.values() if one is not None] for module in model.modules()]
    return [torch.cat([one.reshape(-1) for one in those if one is not None]) for those in every if those]


def unequal(me: StageWorker) -> dict[str, Any]:
    """Return seconds of a step on unequal workers: owners by speed and shares by LB-BSP, against n³ and equal ones; and
    against torch's Muon under DDP."""
    task, stage = me.task, me.stage
    timed, size = MODELS[task["model"]], dist.get_world_size()
    batch = timed.each * size * 2
    arms: dict[str, Any] = {}
    for name, place, balance in (("ours", "speed", "lb-bsp"), ("n3", "compute", "even")):
        torch.manual_seed(0)
        how: dict[str, Any] = {"damping": DAMPING, "inv_update_steps": 10, "grad_worker_fraction": 1 / size}
        kfac = task["part"] == "kfac"
        part = uneven.KFAC(assignment_strategy=place, **how) if kfac else uneven.Muon(assignment_strategy=place)
        arms[name] = PartArm(timed.make(), part, batch, balance=balance)
    if not kfac:
        torch.manual_seed(0)
        arms["torch's"] = Plain(timed.make(), "muon")
    torch.manual_seed(1 + dist.get_rank())
    stage.have(task["cores"], ())
    x, y = timed.draw(batch)
    taken: dict[str, list[float]] = {name: [] for name in arms}
    worked: list[list[float]] = []
    for number in range(task["blocks"] + task["settle"]):
        stage.say(task["model"], number / (task["blocks"] + task["settle"]))
        for name, arm in arms.items():
            dist.barrier()
            began_s, cpu_s = time.perf_counter(), time.process_time()
            for _ in range(10):
                arm.step(x, y) if name != "torch's" else arm.step(x[: batch // size], y[: len(y) // size])
            dist.barrier()
            if number >= task["settle"]:
                taken[name].append((time.perf_counter() - began_s) / 10)
                each = me.gather((time.process_time() - cpu_s) / 10)
                if name == "ours":
                    worked.append(each)
    costs = _plain_costs(me, timed, batch, arms["ours"].session.next_shares)
    stage.lift()
    found = {name: statistics.median(them) for name, them in taken.items()}
    ours = arms["ours"]
    worker_cpu_s = [statistics.median(them) for them in zip(*worked, strict=True)]
    limit_s = _limit_s(worker_cpu_s, task["cores"], ours.session.next_shares, ours.part.owners)
    result = {
        "step_s": found,
        "limit_s": limit_s,
        "gain": found["n3"] / found["ours"],
        "of_limit": limit_s / found["ours"],
        "worker_cpu_s": worker_cpu_s,
        "shares": list(arms["ours"].session.next_shares),
        "costs": costs,
        "described": {name: arms[name].part.describe() for name in ("ours", "n3")} if dist.get_rank() == 0 else {},
        "owners": {name: list(one) for name, one in arms["ours"].part.owners.items()},
    }
    for arm in arms.values():
        arm.close()
    return result


class _OwnTime(uneven.Callback):
    """A part that only keeps the run."""

    def attach(self, run: uneven.CallbackContext) -> None:
        self.run = run


def _plain_costs(me: StageWorker, timed: TimedModel, batch: int, shares: tuple[int, ...]) -> dict[str, float]:
    """Return core-seconds of steps without a preconditioner, by least squares over the workers' shares."""
    torch.manual_seed(0)
    part = _OwnTime()
    arm = PartArm(timed.make(), part, batch, balance=f"static:shares={'/'.join(map(str, shares))}")
    x, y = timed.draw(batch)
    for _ in range(12):
        arm.step(x, y)
    _, local_cpu_s, exchange_cpu_s = part.run.own_time()
    rows = me.gather([shares[me.rank], local_cpu_s, exchange_cpu_s])
    arm.close()
    table = torch.tensor(rows, dtype=torch.float64)
    ones = torch.stack([torch.ones(len(rows), dtype=torch.float64), table[:, 0]], 1)
    overhead_s, per_sample_s = torch.linalg.lstsq(ones, table[:, 1:2]).solution[:, 0].tolist()
    return {
        "overhead_core_s": max(0.0, overhead_s),
        "per_sample_core_s": per_sample_s,
        "exchange_core_s": float(table[:, 2].median()),
        "gradient_bytes": sum(4 * one.numel() for one in arm.model.parameters()),
    }


def _limit_s(
    cpu_s: list[float], cores: list[float], shares: tuple[int, ...], owners: dict[str, tuple[int, ...]]
) -> float:
    """Return seconds of a step in which all workers work all the time; or, if longer, those of a worker with a single
    sample and no ownership, which has nothing to give away."""
    owning = {rank for those in owners.values() for rank in those}
    bare = [rank for rank, share in enumerate(shares) if share <= 1 and rank not in owning]
    return max([sum(cpu_s) / sum(cores), *(cpu_s[rank] / cores[rank] for rank in bare)])


def links(me: StageWorker) -> dict[str, Any]:
    """Run :func:`steps` on links of limited Mbit/s."""
    task, stage = me.task, me.stage
    stage.have((), task["mbit_per_s"])
    found = steps(me)
    stage.lift()
    return found


if __name__ == "__main__":
    work(play)
