"""Hugging Face Accelerate with a session: Accelerate handles precision, the session workers and gradients."""

from typing import Any, TypeVar, TypeVarTuple, overload

from accelerate import Accelerator
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from uneven.errors import ConfigError
from uneven.run.session import Session

Model = TypeVar("Model", bound=nn.Module)
First = TypeVar("First")
More = TypeVarTuple("More")


@overload
def prepare(session: Session, accelerator: Accelerator, model: Model) -> Model: ...
@overload
def prepare(
    session: Session, accelerator: Accelerator, model: Model, first: First, /, *more: *More
) -> tuple[Model, First, *More]: ...
def prepare(  # type: ignore[misc] # mypy does not match it with TypeVarTuples
    session: Session, accelerator: Accelerator, model: nn.Module, *stateful: Any
) -> Any:
    """Pass the model to the session and to Accelerate, which does not wrap it in ``DistributedDataParallel``::

        model, optimizer = prepare(session, Accelerator(), model, optimizer)

    The loader remains the session's. To accumulate gradients use ``session.no_sync()``, not ``accelerator.accumulate``.

    Args:
        stateful: the model's optimizers, and their schedulers, which advance once per step.

    Returns:
        What was given, prepared by Accelerate for the loop: the model, or a tuple if there are several.

    Raises:
        ConfigError: the accelerator shards models, or accumulates gradients itself.
    """
    kind = accelerator.distributed_type.value
    if kind not in ("NO", "MULTI_CPU", "MULTI_GPU"):
        raise ConfigError(f"Accelerate with {kind}: the session exchanges gradients of whole models; leave it out")
    if accelerator.gradient_accumulation_steps != 1:
        raise ConfigError(
            f"gradient_accumulation_steps = {accelerator.gradient_accumulation_steps}: Accelerate would skip "
            f"steps without the session's knowledge; leave it at 1, and use session.no_sync()"
        )
    session.setup(model, *stateful)
    prepared = accelerator.prepare_scheduler

    def prepare_scheduler(scheduler: LRScheduler) -> Any:
        made = prepared(scheduler)
        made.split_batches = True  # Accelerate's name for global batches; otherwise it advances once per worker
        return made

    accelerator.prepare_scheduler = prepare_scheduler
    for one in accelerator._schedulers:
        one.split_batches = True
    # evaluation_mode makes Accelerate not wrap the model for training on several workers.
    prepared_model = accelerator.prepare_model(model, evaluation_mode=True)
    others = [
        accelerator.prepare_scheduler(one) if isinstance(one, LRScheduler) else accelerator.prepare_optimizer(one)
        for one in stateful
    ]
    return (prepared_model, *others) if others else prepared_model
