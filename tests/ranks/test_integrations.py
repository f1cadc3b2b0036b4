"""Libraries that wrap models, with a session: the weights of one process on unequal shares."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from session_parts import X, assert_same, batches, net, sgd, tensors
from torch.utils.data import TensorDataset

import uneven
from brought import brought
from uneven.errors import ConfigError
from uneven.testing.ranks import RankContext, ranks


def loop(batches: Any, library: Any, model: Any, optimizer: Any, scheduler: Any, **how: Any) -> None:
    """The usual one; ``no_sync`` for all passes of a step but the last."""
    clip, passes, no_sync = how.get("clip"), how.get("passes", 1), how.get("no_sync", nullcontext)
    for number, (x, y) in enumerate(batches, 1):
        last = number % passes == 0
        with nullcontext() if last else no_sync():
            loss = F.cross_entropy(model(x), y)
            library.backward(loss / passes)
        if last:
            if clip is not None:
                clip(library, model, optimizer)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()


def train(make: Any, prepare: Any, plain: Any, tolerance: float = 1e-6, sync: str = "", **how: Any) -> tuple[Any, Any]:
    """With a session, and once more in one process on the union batches; what was compared."""
    session = uneven.Session(balance="static:shares=6/2/4")
    (model, library), (alone, other) = (net(), make()), (net(), make())
    wrapped, optimizer, scheduler = prepare(session, library, model)
    own = {"session": session.no_sync, "library": lambda: library.no_backward_sync(wrapped)}
    no_sync = {"no_sync": own[sync]} if sync else {}
    loader = session.loader(TensorDataset(*tensors()), X)
    loop(chain(loader, loader), library, wrapped, optimizer, scheduler, **how | no_sync)
    session.close()
    loop(batches(2), other, *plain(other, alone), **how)
    assert_same(model, alone, tolerance)
    return model, scheduler


def halved(optimizer: Any) -> Any:
    return torch.optim.lr_scheduler.StepLR(optimizer, 3)


def needs(name: str) -> pytest.MarkDecorator:
    missing = find_spec(name) is None  # not imported here: both set variables of the environment when they are
    return pytest.mark.skipif(missing, reason=f"needs {name}: pip install '.[…]'")


def fabric_of(session: uneven.Session, library: Any, model: Any) -> Any:
    from uneven.integrations.fabric import prepare

    wrapped, optimizer = prepare(session, library, model, inner := sgd(model))
    return wrapped, optimizer, halved(inner)


def fabric_alone(library: Any, model: Any) -> Any:
    wrapped, optimizer = library.setup(model, inner := sgd(model))
    return wrapped, optimizer, halved(inner)


CLIPPED: tuple[dict[str, Any], ...] = (
    {"clip": lambda fabric, model, optimizer: fabric.clip_gradients(model, optimizer, max_norm=0.2)},
    {"clip": lambda fabric, model, optimizer: fabric.clip_gradients(model, optimizer, clip_val=0.02)},
)


@brought("loops", "Fabric", '`Fabric(precision="64-true")`, `"bf16-mixed"`, `"bf16-true"`')
@brought("loops", "Fabric", "`fabric.clip_gradients(…, max_norm=…)`, `clip_val=…`")
@brought("loops", "Fabric", "`fabric.no_backward_sync(model)`, or `session.no_sync()`")
@needs("lightning_fabric")
@ranks(3, fresh=True)
def test_fabric_trains_as_one_process(me: RankContext) -> None:
    from lightning_fabric import Fabric

    def tried(precision: str = "32-true", tolerance: float = 1e-6, **how: Any) -> None:
        fabric = partial(Fabric, accelerator="cpu", devices=1, precision=precision)
        train(fabric, fabric_of, fabric_alone, tolerance, **how)

    tried()
    tried("64-true")
    tried("bf16-mixed", 2e-2)
    tried("bf16-true", 2e-2)
    tried(**CLIPPED[0])
    tried(**CLIPPED[1])
    tried(passes=2, sync="session", **CLIPPED[0])
    tried(passes=2, sync="library")


@brought("loops", "Fabric", "`fabric.global_rank`, `is_global_zero`, `print`, `save`, `all_reduce`, `broadcast`")
@needs("lightning_fabric")
@ranks(3, fresh=True)
def test_fabric_knows_the_workers(me: RankContext, tmp_path: str) -> None:
    from lightning_fabric import Fabric

    from uneven.integrations.fabric import prepare

    fabric, model = Fabric(accelerator="cpu", devices=1), net()
    with uneven.Session() as session:
        prepare(session, fabric, model, sgd(model))
        assert (fabric.global_rank, fabric.local_rank, fabric.world_size) == (me.rank, me.rank, me.size)
        assert fabric.is_global_zero == (me.rank == 0)
        assert fabric.broadcast(f"from {me.rank}") == "from 0"
        rank = torch.tensor(float(me.rank))
        assert fabric.all_reduce(rank.clone(), reduce_op="sum") == 3.0
        assert fabric.all_gather(rank).flatten().tolist() == [0.0, 1.0, 2.0]
        writes: list[Any] = []
        fabric.strategy.checkpoint_io.save_checkpoint = lambda **named: writes.append(named["path"])
        fabric.save(Path(tmp_path) / "state.ckpt", {"model": model})
        assert len(writes) == (me.rank == 0)


def accelerate_of(session: uneven.Session, library: Any, model: Any) -> Any:
    from uneven.integrations.accelerate import prepare

    optimizer = sgd(model)
    return prepare(session, library, model, optimizer, halved(optimizer))


def accelerate_alone(library: Any, model: Any) -> Any:
    """What it gives one process."""
    optimizer = sgd(model)
    return library.prepare_model(model, evaluation_mode=True), optimizer, halved(optimizer)


@brought("loops", "Accelerate", '`Accelerator(mixed_precision="bf16")`')
@brought("loops", "Accelerate", "`accelerator.clip_grad_norm_`, `clip_grad_value_`")
@brought("loops", "Accelerate", "several passes for one step, in `session.no_sync()`")
@needs("accelerate")
@ranks(3, fresh=True)
def test_accelerate_trains_as_one_process(me: RankContext) -> None:
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    def tried(tolerance: float = 1e-6, options: Any = None, **how: Any) -> None:
        AcceleratorState._reset_state()
        train(partial(Accelerator, cpu=True, **options or {}), accelerate_of, accelerate_alone, tolerance, **how)

    by_norm: dict[str, Any] = {"clip": lambda library, model, _: library.clip_grad_norm_(model.parameters(), 0.2)}
    by_value: dict[str, Any] = {"clip": lambda library, model, _: library.clip_grad_value_(model.parameters(), 0.02)}
    tried()
    tried(**by_norm)
    tried(**by_value)
    tried(passes=2, sync="session", **by_norm)
    tried(2e-2, {"mixed_precision": "bf16"})


@brought("loops", "Accelerate", "a scheduler in `prepare`, or in `accelerator.prepare` before or after it")
@brought("loops", "Accelerate", "`is_main_process`, `save_state`, `load_state`, `register_for_checkpointing(session)`")
@needs("accelerate")
@ranks(3, fresh=True)
def test_accelerate_schedulers_and_states(me: RankContext, tmp_path: str) -> None:
    from accelerate import Accelerator

    from uneven.integrations.accelerate import prepare

    accelerator, model = Accelerator(cpu=True), net()
    assert accelerator.is_main_process == (me.rank == 0)
    optimizer = sgd(model)
    before = accelerator.prepare(halved(optimizer))
    with uneven.Session(balance="static:shares=6/2/4") as session:
        wrapped, ours, within = prepare(session, accelerator, model, optimizer, halved(optimizer))
        after = accelerator.prepare(halved(optimizer))
        accelerator.register_for_checkpointing(session)
        loader = session.loader(TensorDataset(*tensors()), X)
        for x, y in loader:
            accelerator.backward(F.cross_entropy(wrapped(x), y))
            ours.step()
            for scheduler in (before, within, after):
                scheduler.step()
            ours.zero_grad()
        assert [one.scheduler.last_epoch for one in (before, within, after)] == [len(loader)] * 3
        accelerator.save_state(tmp_path)
        accelerator.wait_for_everyone()  # rank 0 writes, all read
        kept = net()
        kept.load_state_dict(model.state_dict())
        model.get_parameter("0.weight").data.zero_()
        accelerator.load_state(tmp_path)
        assert_same(model, kept, 0.0)


class Several:
    """As a library's object looks that has workers of its own, or accumulates."""

    world_size, strategy = 2, None
    gradient_accumulation_steps = 4
    distributed_type = SimpleNamespace(value="NO")


class Sharding(Several):
    distributed_type = SimpleNamespace(value="FSDP")


@needs("lightning_fabric")
@needs("accelerate")
@ranks(1, fresh=True)
def test_workers_and_passes_of_their_own_are_refused(me: RankContext) -> None:
    from uneven.integrations import accelerate, fabric

    session = uneven.Session()
    with pytest.raises(ConfigError, match="Fabric has 2 workers in"):
        fabric.prepare(session, Several(), net())
    with pytest.raises(ConfigError, match="gradient_accumulation_steps = 4"):
        accelerate.prepare(session, Several(), net())
    with pytest.raises(ConfigError, match="Accelerate with FSDP"):
        accelerate.prepare(session, Sharding(), net())
    session.close()
