"""Train a member for one epoch on its own batches of the shared stream, and judge it on the validation set."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from uneven.errors import TrainingError
from uneven.fleet.ensemble import Member, Metric
from uneven.fleet.member.team import SingleProcess, Team
from uneven.fleet.pure.converge import Epoch
from uneven.fleet.pure.planning.rates import LAST_BATCHES, MOST_BATCHES
from uneven.fleet.pure.sections import Section
from uneven.fleet.stream.stream_reader import Reader
from uneven.runtime.jobs.heartbeat import Heartbeat

_TRIED_BATCHES = 3  # of a profile, before the number of further batches is set

Factor = Callable[[int, int], float]
"""Function of the step within an epoch and the steps of the epoch; returns the factor of the learning rate."""


def run_epoch(
    member: Member,
    reader: Reader,
    workers: SingleProcess | Team,
    sections: tuple[Section, Section],
    metric: Metric,
    device: torch.device,
    factor: Factor | None = None,
    *,
    pulse: Heartbeat,
    epoch: int,
    strict: bool,
) -> Epoch:
    """Train on every training sample once, then judge on every validation sample once.

    `epoch` is the number of this member's epoch, from 1. With `strict`, raises `TrainingError`, which names the step,
    if a loss is not finite.
    """
    train, validate = sections
    waited_s, began_s = reader.waited_s, time.perf_counter()
    samples = train.samples - (train.samples % workers.batch if member.drop_last else 0)
    steps = -(-samples // workers.batch)
    with _scaled(member.optimizer, None if factor is None else lambda step: factor(step, steps)):
        loss = _train(member, workers, train, device, pulse, epoch, strict) / samples
    trained_s = time.perf_counter()
    worth = _validate(member, workers, validate, metric, device, pulse, epoch) if validate.samples else loss
    if member.scheduler is not None and member.schedule == "epoch":
        if isinstance(member.scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
            member.scheduler.step(worth)
        else:
            member.scheduler.step()
    return Epoch(
        train_loss=loss,
        metric=worth,
        train_s=trained_s - began_s,
        waited_s=reader.waited_s - waited_s,
        validate_s=time.perf_counter() - trained_s,
        samples=samples,
        shares=workers.shares,
    )


@contextmanager
def _scaled(optimizer: torch.optim.Optimizer, factor: Callable[[int], float] | None) -> Iterator[None]:
    """Multiply the learning rates by ``factor(step)`` during each step."""
    if factor is None:
        yield
        return
    kept: list[Any] = []
    steps = 0

    # The factor is applied around `step()` only, so schedulers see and change the unscaled rate.
    def before(one: torch.optim.Optimizer, *_: Any) -> None:
        nonlocal steps
        kept[:] = [group["lr"] for group in one.param_groups]
        for group in one.param_groups:
            group["lr"] = group["lr"] * factor(steps)
        steps += 1

    def after(one: torch.optim.Optimizer, *_: Any) -> None:
        for group, rate in zip(one.param_groups, kept, strict=True):
            group["lr"] = rate

    hooks = optimizer.register_step_pre_hook(before), optimizer.register_step_post_hook(after)
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _train(
    member: Member,
    workers: SingleProcess | Team,
    section: Section,
    device: torch.device,
    pulse: Heartbeat,
    epoch: int,
    strict: bool,
) -> float:
    member.model.train()
    total = torch.zeros((), dtype=torch.float64, device=device)
    finite = torch.zeros((), dtype=torch.int64, device=device)  # finite steps; a sum that is not finite stays so
    for number, (fields, counted) in enumerate(workers.batches(section), 1):
        if pulse.beat("step {} of epoch {}", number, epoch) and strict:
            _refuse_nonfinite(total, finite, epoch)  # only at a pulse, because reading the sum waits for the GPU
        total += _step(member, [field.to(device) for field in fields]).double() * counted
        finite += total.isfinite()
    if strict:
        _refuse_nonfinite(total, finite, epoch)
    return workers.total(total)


def _refuse_nonfinite(total: torch.Tensor, finite: torch.Tensor, epoch: int) -> None:
    if not total.isfinite():
        raise diverged(f"its loss was NaN or infinite in step {int(finite) + 1} of epoch {epoch}")


def diverged(what: str) -> TrainingError:
    return TrainingError(
        f"diverged: {what}; let its factory lower the learning rate or clip gradients, and name another "
        'directory; Options(nonfinite="warn") continues the training'
    )


def nonfinite_in(model: nn.Module) -> str | None:
    """Return the name of the first parameter with a NaN or infinity, or buffer with a NaN, or None."""
    for name, weights in model.named_parameters():
        if weights.is_floating_point() and not weights.isfinite().all():
            return name
    for name, buffer in model.named_buffers():
        # A buffer may hold infinities on purpose, such as an attention mask.
        if buffer.is_floating_point() and buffer.isnan().any():
            return name
    return None


def _step(member: Member, fields: Sequence[torch.Tensor]) -> torch.Tensor:
    inputs, target = _parted(fields)
    loss = member.loss(member.model(*inputs), target)
    loss.backward()
    member.optimizer.step()
    member.optimizer.zero_grad()
    if member.scheduler is not None and member.schedule == "batch":
        member.scheduler.step()
    return loss.detach()


@torch.no_grad()
def _validate(
    member: Member,
    workers: SingleProcess | Team,
    section: Section,
    metric: Metric,
    device: torch.device,
    pulse: Heartbeat,
    epoch: int,
) -> float:
    member.model.eval()
    measure = metric.of or member.loss
    total = torch.zeros((), dtype=torch.float64, device=device)
    for number, fields in enumerate(workers.judged(section), 1):
        pulse.beat("batch {} of the validation after epoch {}", number, epoch)
        inputs, target = _parted([field.to(device) for field in fields])
        # Weighted by samples, because the last batch may be smaller.
        total += measure(member.model(*inputs), target).double() * len(target)
    return workers.total(total) / section.samples


def _parted(fields: Sequence[torch.Tensor]) -> tuple[Sequence[torch.Tensor], torch.Tensor]:
    return (fields, fields[0]) if len(fields) == 1 else (fields[:-1], fields[-1])


class Copies:
    """A data set of one sample many times, for profiles that must not wait for data."""

    def __init__(self, sample: Sequence[Any], samples: int) -> None:
        self._fields = [torch.as_tensor(field) for field in sample]
        self._samples = samples

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, position: int) -> list[torch.Tensor]:
        return self.__getitems__([position])

    def __getitems__(self, positions: Sequence[int]) -> list[torch.Tensor]:
        return [field.expand(len(positions), *field.shape).contiguous() for field in self._fields]


def profile(
    member: Member,
    workers: SingleProcess | Team,
    copies: Copies,
    device: torch.device,
    limit_s: float,
    pulse: Heartbeat,
) -> list[float]:
    """Return the seconds of the last steps of a member that never waits for data. Its weights are useless afterwards.

    It runs at most 48 steps, and at most as many as fit into ``limit_s`` at the speed of the third one. The first half
    warms up and is left out.
    """
    member.model.train()
    # Processor time does not grow when other processes use the core. It cannot time a GPU or a wait for other workers.
    now_s = time.process_time if device.type == "cpu" and workers.size == 1 else time.perf_counter
    ends_s, most = [now_s()], MOST_BATCHES
    pulse.begin("step 1 of its profile")
    for fields in workers.tried(copies):
        pulse.beat("step {} of its profile", len(ends_s))
        _step(member, [field.to(device) for field in fields])
        if device.type == "cuda":
            torch.cuda.synchronize(device)  # kernels run asynchronously
        ends_s.append(now_s())
        if len(ends_s) == _TRIED_BATCHES + 1:
            left_s, each_s = limit_s - (ends_s[-1] - ends_s[0]), max(ends_s[-1] - ends_s[-2], 1e-9)
            fit = _TRIED_BATCHES + int(min(MOST_BATCHES, max(0.0, left_s) / each_s))
            # All workers need the same number, because each step is a collective.
            most = min(MOST_BATCHES, workers.first_says(fit))
        if len(ends_s) > most:
            break
    last = min(LAST_BATCHES, len(ends_s) // 2)
    return [after - before for before, after in zip(ends_s[-1 - last : -1], ends_s[-last:], strict=True)]
