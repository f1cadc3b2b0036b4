"""The cases of ``uneven bench gpu``, and their tables."""

import functools
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import uneven
from uneven.errors import ConfigError
from uneven.testing.ranks import run_ranks, stop_pool
from uneven_bench.gpu.workers import BALANCES, pair, unlike
from uneven_bench.harness.figures import Spread, by_turns
from uneven_bench.harness.show import Progress, chosen
from uneven_bench.preconditioners.arms import DAMPING, KINDS, KfacPytorch, PartArm, Plain, StepArm, rival
from uneven_bench.preconditioners.bench import PERIODS, mean_step
from uneven_bench.preconditioners.models import MODELS, TimedModel

STEPS = 20  # timed together: the host runs ahead of the device, so a single step would time the launch
# SOAP takes factors in every step.
_KINDS_OF = {"SOAP": ("refresh", "plain")} | dict.fromkeys(("sgd", "adamw", "torch's Muon", "Muon"), ("plain",))
EACH = 8  # times the samples that a worker of the other benches takes


def run(quick: bool, progress: Progress, case: str | None = None) -> dict[str, Any]:
    """Play the cases. Result: ``device``; ``session_ratio`` (model → its step ÷ the plain loop's) and ``session_s``;
    ``second_order`` (model → method → kind of step → seconds) and ``second_order_vs_sgd`` (model → method → at 1/10 and
    10/100); ``pair`` (balancer → seconds of an iteration) and ``pair_limit_s``; ``unlike`` (the same, and the GPU
    ``alone``). Raises ConfigError: this machine has no CUDA device. UnknownNameError: no such case."""
    if not torch.cuda.is_available():
        raise ConfigError("uneven bench gpu needs a CUDA device, and torch sees none: `uneven doctor` says why")
    cases = {"session": _session, "second-order": _second_order, "pair": _pair, "unlike": _unlike}
    wanted = chosen(case, cases)
    found: dict[str, Any] = {"device": torch.cuda.get_device_name()}
    try:
        for name in wanted:
            found |= cases[name](quick, progress)
    finally:
        stop_pool()
    return found


def _seconds(arm: StepArm, batch: tuple[Tensor, Tensor], steps: int, kind: str = "plain") -> float:
    torch.cuda.synchronize()
    began_s = time.perf_counter()
    for _ in range(steps):
        arm.due(kind)
        arm.step(*batch)
    torch.cuda.synchronize()
    return (time.perf_counter() - began_s) / steps


def _made(timed: TimedModel, make: Callable[[nn.Module], StepArm]) -> StepArm:
    torch.manual_seed(0)
    return make(timed.make().cuda())


def _drawn(timed: TimedModel) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    x, y = timed.draw(timed.each * EACH)
    return x.cuda(), y.cuda()


def _session(quick: bool, told: Progress) -> dict[str, Any]:
    rounds, seconds, ratios = 7 if quick else 21, {}, {}
    for place, (name, timed) in enumerate(MODELS.items()):
        told("session", name, place / len(MODELS))
        batch = _drawn(timed)
        arms = {
            "plain": _made(timed, lambda model: Plain(model, "sgd")),
            "session": _made(timed, functools.partial(PartArm, part=None, batch=timed.each * EACH, balance="lb-bsp")),
        }
        found = by_turns({arm: functools.partial(_seconds, one, batch, STEPS) for arm, one in arms.items()}, rounds)
        arms["session"].close()
        ratios[name] = Spread.ratio(found["session"], found["plain"]).three
        seconds[name] = {arm: statistics.median(them) / STEPS for arm, them in found.items()}
    return {"session_ratio": ratios, "session_s": seconds}


def _second_order(quick: bool, told: Progress) -> dict[str, Any]:
    rounds, seconds, ratios = 3 if quick else 7, {}, {}
    for place, name in enumerate(("resnet32", "mlp", "transformer")):
        told("second order", name, place / 3)
        timed, batch = MODELS[name], _drawn(MODELS[name])
        size = timed.each * EACH
        kfac = functools.partial(uneven.KFAC, damping=DAMPING, factor_update_steps=10, inv_update_steps=100)
        makers: dict[str, Callable[[nn.Module], StepArm]] = {
            "sgd": lambda model: Plain(model, "sgd"),
            "adamw": lambda model: Plain(model, "adamw"),
            "torch's Muon": lambda model: Plain(model, "muon"),
            "Muon": functools.partial(_part, part=uneven.Muon, batch=size),
            "K-FAC": functools.partial(_part, part=kfac, batch=size),
            "SOAP": functools.partial(_part, part=lambda: uneven.SOAP(inv_update_steps=10), batch=size),
        }
        if rival() is not None:
            makers["kfac-pytorch"] = functools.partial(KfacPytorch, share=1.0)
        arms = {method: _made(timed, make) for method, make in makers.items()}
        found: dict[str, dict[str, list[float]]] = {method: {kind: [] for kind in KINDS} for method in arms}
        for number in range(rounds + 1):
            for method, arm in arms.items():
                for kind in _KINDS_OF.get(method, ("refresh", "plain", "factor")):
                    taken_s = _seconds(arm, batch, STEPS if kind == "plain" else 3, kind)
                    if number:
                        found[method][kind].append(taken_s)
        for arm in arms.values():
            arm.close()
        medians = {
            method: {kind: statistics.median(them) for kind, them in kinds.items() if them}
            for method, kinds in found.items()
        }
        seconds[name] = medians
        sgd_s = medians["sgd"]["plain"]
        ratios[name] = {
            method: [mean_step(them, one) / sgd_s for one in PERIODS.values()] for method, them in medians.items()
        }
    return {"second_order": seconds, "second_order_vs_sgd": ratios}


def _part(model: nn.Module, part: Callable[[], Any], batch: int) -> StepArm:
    return PartArm(model, part(), batch)


def _pair(quick: bool, told: Progress) -> dict[str, Any]:
    told("pair", "two workers on one GPU", 0.0)
    found = run_ranks(2, pair, 60 if quick else 200, timeout_s=240.0, join=False)[0]
    return {"pair": {name: found[name] for name in BALANCES}, "pair_limit_s": found["limit"]}


def _unlike(quick: bool, told: Progress) -> dict[str, Any]:
    told("unlike", "a GPU beside a core", 0.0)
    found = run_ranks(2, unlike, 20 if quick else 60, timeout_s=240.0, join=False, fresh=True)[0]
    return {"unlike": found}
