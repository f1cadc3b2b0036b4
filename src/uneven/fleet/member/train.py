"""One member's epoch: its own batches of the shared stream, then the validation set."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from uneven.errors import TrainingError
from uneven.fleet.ensemble import Member, Metric
from uneven.fleet.member.converge import Epoch
from uneven.fleet.member.team import Alone, Team
from uneven.fleet.planning.profile import LAST_BATCHES, MOST_BATCHES
from uneven.fleet.stream.order import Section
from uneven.fleet.stream.reader import Reader
from uneven.jobs.pulse import Pulse

_TRIED_BATCHES = 3  # of a profile, before it is decided how many more fit into its time

Factor = Callable[[int, int], float]
"""Step of an epoch, steps in it → what the learning rate is multiplied with."""


def run_epoch(
    member: Member,
    reader: Reader,
    workers: Alone | Team,
    sections: tuple[Section, Section],
    metric: Metric,
    device: torch.device,
    factor: Factor | None = None,
    *,
    pulse: Pulse,
    epoch: int,
    strict: bool,
) -> Epoch:
    """Train on every training sample once, then judge on every validation sample once.

    Args:
        factor: of the learning rate; None leaves it alone.
        epoch: of this member, counted from 1.
        strict: a loss that is no finite number ends the training.

    Raises:
        TrainingError: the loss was not finite, and in which step.
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
    """Multiply the learning rates with ``factor(step)`` while each step is taken; schedulers do not see it."""
    if factor is None:
        yield
        return
    kept: list[Any] = []
    steps = 0

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
    workers: Alone | Team,
    section: Section,
    device: torch.device,
    pulse: Pulse,
    epoch: int,
    strict: bool,
) -> float:
    member.model.train()
    total = torch.zeros((), dtype=torch.float64, device=device)
    finite = torch.zeros((), dtype=torch.int64, device=device)  # steps; what is not finite once, remains so in a sum
    for number, (fields, counted) in enumerate(workers.batches(section), 1):
        if pulse.beat("step {} of epoch {}", number, epoch) and strict:
            _refuse_nonfinite(total, finite, epoch)  # now and then, since a GPU has to be waited for
        total += _step(member, [field.to(device) for field in fields]).double() * counted
        finite += total.isfinite()
    if strict:
        _refuse_nonfinite(total, finite, epoch)
    return workers.total(total)


def _refuse_nonfinite(total: torch.Tensor, finite: torch.Tensor, epoch: int) -> None:
    if not total.isfinite():
        raise diverged(f"its loss was NaN or infinite in step {int(finite) + 1} of epoch {epoch}")


def diverged(what: str) -> TrainingError:
    """What is said of a member that learns nothing more, with the way out."""
    return TrainingError(
        f"diverged: {what}; let its factory lower the learning rate or clip gradients, and name another directory; "
        f'Options(nonfinite="warn") trains on'
    )


def nonfinite_in(model: nn.Module) -> str | None:
    """The first parameter with a NaN or an infinity, or buffer with a NaN; a mask may well hold infinities."""
    for name, weights in model.named_parameters():
        if weights.is_floating_point() and not weights.isfinite().all():
            return name
    for name, buffer in model.named_buffers():
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
    workers: Alone | Team,
    section: Section,
    metric: Metric,
    device: torch.device,
    pulse: Pulse,
    epoch: int,
) -> float:
    member.model.eval()
    measure = metric.of or member.loss
    total = torch.zeros((), dtype=torch.float64, device=device)
    for number, fields in enumerate(workers.judged(section), 1):
        pulse.beat("batch {} of the validation after epoch {}", number, epoch)
        inputs, target = _parted([field.to(device) for field in fields])
        total += measure(member.model(*inputs), target).double() * len(target)
    return workers.total(total) / section.samples


def _parted(fields: Sequence[torch.Tensor]) -> tuple[Sequence[torch.Tensor], torch.Tensor]:
    return (fields, fields[0]) if len(fields) == 1 else (fields[:-1], fields[-1])


class Copies:
    """One sample many times over, as a data set: what a member is profiled on, for it never lets it wait."""

    def __init__(self, sample: Sequence[Any], samples: int) -> None:
        self._fields, self._samples = [torch.as_tensor(field) for field in sample], samples

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, position: int) -> list[torch.Tensor]:
        return self.__getitems__([position])

    def __getitems__(self, positions: Sequence[int]) -> list[torch.Tensor]:
        return [field.expand(len(positions), *field.shape).contiguous() for field in self._fields]


def profile(
    member: Member, workers: Alone | Team, copies: Copies, device: torch.device, limit_s: float, pulse: Pulse
) -> list[float]:
    """Seconds of the last steps of a member that never waits for data; the member is spoilt by it.

    At most 48 steps, and no more than fit into ``limit_s`` at the pace of the third; then the first half of the steps
    is left out, as warming up. Who trains alone on a CPU slot is timed by the seconds of the processor that it used:
    others on the machine do not make them more.
    """
    member.model.train()
    now_s = time.process_time if device.type == "cpu" and workers.size == 1 else time.perf_counter
    ends_s, most = [now_s()], MOST_BATCHES
    pulse.begin("step 1 of its profile")
    for fields in workers.tried(copies):
        pulse.beat("step {} of its profile", len(ends_s))
        _step(member, [field.to(device) for field in fields])
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        ends_s.append(now_s())
        if len(ends_s) == _TRIED_BATCHES + 1:
            left_s, each_s = limit_s - (ends_s[-1] - ends_s[0]), max(ends_s[-1] - ends_s[-2], 1e-9)
            fit = _TRIED_BATCHES + int(min(MOST_BATCHES, max(0.0, left_s) / each_s))
            most = min(MOST_BATCHES, workers.first_says(fit))
        if len(ends_s) > most:
            break
    last = min(LAST_BATCHES, len(ends_s) // 2)
    return [after - before for before, after in zip(ends_s[-1 - last : -1], ends_s[-last:], strict=True)]
