"""One member's epoch: its own batches of the shared stream, then the validation set."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch

from uneven.fleet.converge import Epoch
from uneven.fleet.ensemble import Member, Metric
from uneven.fleet.feed_reader import Reader
from uneven.fleet.feed_stream import Section
from uneven.fleet.profile import LAST_BATCHES, MOST_BATCHES


def run_epoch(
    member: Member, reader: Reader, sections: tuple[Section, Section], metric: Metric, device: torch.device
) -> Epoch:
    """Train on every training sample once, then judge on every validation sample once."""
    train, validate = sections
    waited_s, began_s = reader.waited_s, time.perf_counter()
    loss = _train(member, reader, train, device)
    trained_s = time.perf_counter()
    worth = _validate(member, reader, validate, metric, device) if validate.samples else loss
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
        samples=train.samples,
    )


def _train(member: Member, reader: Reader, section: Section, device: torch.device) -> float:
    member.model.train()
    total = torch.zeros((), dtype=torch.float64, device=device)
    for fields in reader.batches(section, member.batch_size):
        total += _step(member, [field.to(device) for field in fields]).double() * len(fields[0])
    return float(total) / section.samples


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
def _validate(member: Member, reader: Reader, section: Section, metric: Metric, device: torch.device) -> float:
    member.model.eval()
    measure = metric.of or member.loss
    total = torch.zeros((), dtype=torch.float64, device=device)
    for fields in reader.batches(section, member.batch_size):
        inputs, target = _parted([field.to(device) for field in fields])
        total += measure(member.model(*inputs), target).double() * len(target)
    return float(total) / section.samples


def _parted(fields: Sequence[torch.Tensor]) -> tuple[Sequence[torch.Tensor], torch.Tensor]:
    return (fields, fields[0]) if len(fields) == 1 else (fields[:-1], fields[-1])


def profile(member: Member, sample: Sequence[Any], device: torch.device, limit_s: float) -> list[float]:
    """Seconds of the last steps of a member that never waits for data; the member is spoilt by it.

    At most 48 steps, on a batch of copies of one sample. What takes longer than ``limit_s`` is broken off; then the
    first half of the steps is left out, as warming up.
    """
    batch = [torch.as_tensor(field).expand(member.batch_size, *torch.as_tensor(field).shape) for field in sample]
    fields = [field.contiguous().to(device) for field in batch]
    member.model.train()
    ends_s = [time.perf_counter()]
    while len(ends_s) <= MOST_BATCHES and (len(ends_s) < 4 or ends_s[-1] - ends_s[0] < limit_s):
        _step(member, fields)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        ends_s.append(time.perf_counter())
    last = min(LAST_BATCHES, len(ends_s) // 2)
    return [after - before for before, after in zip(ends_s[-1 - last : -1], ends_s[-last:], strict=True)]
