"""The training script of ``uneven bench elastic``, one loop for each arm. Its argument is a task in JSON."""

import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from uneven_bench.elastic.cases import at_own_pace, checkpoint_every
from uneven_bench.elastic.worker import ElasticTask, LoggedWorker
from uneven_bench.workloads.base import whole

_EPOCHS = 1_000_000
_SAVED = 3  # saves before the interval is chosen by their median


def ours(task: ElasticTask) -> None:
    """Train as any script under uneven, and log for the bench."""
    import uneven
    from uneven_bench.elastic.book import MergeBook, UpdateBook

    worker = LoggedWorker(task)
    own_pace = at_own_pace(task.told["sync"])
    session = uneven.Session(sync=task.told["sync"], balance="even" if own_pace else None)
    model, optimizer = session.setup(worker.model, worker.optimizer, gradient_as_bucket_view=True)
    worker.hooked()
    loader = session.loader(worker.workload.data(), worker.workload.global_batch, collate_fn=whole)
    book: MergeBook | UpdateBook | None = None
    if task.told["sync"] != "bsp":
        book = UpdateBook(worker, session) if own_pace else MergeBook(worker, session)
    first, on = loader.epoch, True
    if book is not None:
        book.begins()
    for epoch in range(first, _EPOCHS):
        for x, y, index in loader:
            if not (on := worker.goes_on()):
                break
            loss = worker.loss(x, y, index, model)
            with worker.exchange(begun=False) if book is None else nullcontext():
                loss.backward()
            optimizer.step()
            worker.stepped(epoch)
        if not on:
            break
    if own_pace:  # the workers have only the server's copy in common
        with session.evaluation_model():
            worker.ended()
        session.close()
        return
    if task.told["sync"].startswith("shuffle"):  # the newest merge of a worker is that of its group, so merge all
        with session.evaluation_model():
            pass
    worker.ended(None if book is None else book.digest)
    session.close()


def ddp(task: ElasticTask) -> None:
    """Train with plain DDP on even parts of the same global batch, with checkpoints on demand."""
    dist.init_process_group("gloo", timeout=timedelta(seconds=task.told["timeout_s"]))
    rank, size = dist.get_rank(), dist.get_world_size()
    # Rank 0's clock names this life of all workers, so that logs before and after a restart are distinct.
    began = [time.monotonic()]
    dist.broadcast_object_list(began, src=0)
    worker = LoggedWorker(task, life=began[0])
    checkpoint = worker.folder / "checkpoint.pt"
    if task.told["between_faults_s"] and checkpoint.exists():
        saved = torch.load(checkpoint)
        worker.model.load_state_dict(saved["model"])
        worker.optimizer.load_state_dict(saved["optimizer"])
    net = DistributedDataParallel(worker.model, gradient_as_bucket_view=True, broadcast_buffers=False)
    worker.hooked()
    data, batch, steps = worker.workload.data(), worker.workload.global_batch, worker.workload.steps
    saves_s: list[float] = []
    steps_s: list[float] = []
    every, order, ordered = 1, list[int](), -1
    while worker.goes_on():
        epoch, place = divmod(worker.step, steps)
        if epoch != ordered:
            order, ordered = worker.workload.order(epoch), epoch
        ids = order[place * batch : (place + 1) * batch]
        begin_s = time.monotonic()
        x, y, index = data[ids[len(ids) * rank // size : len(ids) * (rank + 1) // size]]
        loss = worker.loss(x, y, index, net)
        with worker.exchange(begun=False):
            loss.backward()
        worker.optimizer.step()
        worker.stepped(epoch)
        steps_s.append(time.monotonic() - begin_s)
        if rank == 0 and task.told["between_faults_s"] and worker.step % every == 0:
            saves_s.append(_saved(worker, checkpoint))
            if len(saves_s) == _SAVED:
                save_s, step_s = sorted(saves_s)[_SAVED // 2], sorted(steps_s)[len(steps_s) // 2]
                every = checkpoint_every(save_s, step_s, task.told["between_faults_s"])
    worker.ended()
    dist.destroy_process_group()


def _saved(worker: LoggedWorker, path: os.PathLike[str]) -> float:
    begin_s = time.monotonic()
    # A kill during the save must not leave half a checkpoint.
    half = worker.folder / "half.pt"
    torch.save({"model": worker.model.state_dict(), "optimizer": worker.optimizer.state_dict()}, half)
    half.replace(path)
    return time.monotonic() - begin_s


def torchft(task: ElasticTask) -> None:
    """Train under torchft, each worker a replica group of one, with one all-reduce by hand or with torchft's DDP."""
    os.environ.setdefault("RUST_LOG", "error")  # else its servers print every quorum; torchft reads it at its import
    from torch._C._distributed_c10d import TCPStore
    from torchft import DistributedDataParallel as TorchFTDDP
    from torchft import Manager, ProcessGroupGloo

    worker = LoggedWorker(task)
    worker.leaves_on_sigterm()
    model, optimizer = worker.model, worker.optimizer

    def load(state: dict[str, dict[str, object]]) -> None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])

    here = task.told["here"]
    store = TCPStore(here, 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=task.told["timeout_s"])),
        load_state_dict=load, state_dict=lambda: {"model": model.state_dict(), "optimizer": optimizer.state_dict()},
        min_replica_size=1, timeout=timedelta(seconds=2 * task.told["timeout_s"]), rank=0, world_size=1,
        store_addr=here, store_port=store.port, hostname=here, lighthouse_addr=task.told["lighthouse"],
        replica_id=f"group-{task.told['slot']}", init_sync=False,
    )  # fmt: skip
    own = task.told["own_ddp"]
    net = TorchFTDDP(manager, model, broadcast_buffers=False) if own else model
    if own:
        worker.hooked()
    data, groups, slot = worker.workload.data(), task.told["groups"], task.told["slot"]
    each = worker.workload.global_batch // task.told["workers"]
    # A worker's samples are those of torchft's own sampler: its place among the most groups there can be.
    steps = worker.workload.samples // (groups * each)
    order, ordered = list[int](), -1
    while worker.goes_on():
        # The manager's step gives the place: a step that is not committed takes the same samples again.
        epoch, place = divmod(manager.current_step(), steps)
        if epoch != ordered:
            order, ordered = worker.workload.order(epoch)[slot::groups], epoch
        x, y, index = data[order[place * each : (place + 1) * each]]
        manager.start_quorum()
        loss = worker.loss(x, y, index, net)
        if own:
            with worker.exchange(begun=False):
                loss.backward()
            committed = manager.should_commit()
        else:
            loss.backward()
            with worker.exchange():
                committed = _reduced(manager, model)
        if committed:
            epoch = (manager.current_step() - 1) // steps  # a newcomer continues at the others' step
            optimizer.step()
            worker.stepped(epoch)
        else:
            optimizer.zero_grad()
    worker.ended()
    manager.shutdown(wait=False)
    os._exit(0)  # its threads would wait for time-outs


def _reduced(manager: object, model: torch.nn.Module) -> bool:
    """Average all gradients in one piece, and return whether the step is committed."""
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    flat = torch.cat([one.flatten() for one in gradients])
    manager.allreduce(flat).wait()  # type: ignore[attr-defined]
    committed: bool = manager.should_commit()  # type: ignore[attr-defined]
    for one, part in zip(gradients, flat.split([one.numel() for one in gradients]), strict=True):
        one.copy_(part.view_as(one))
    return committed


LOOPS: dict[str, Callable[[ElasticTask], None]] = {"uneven": ours, "ddp": ddp, "torchft": torchft}


if __name__ == "__main__":
    task = ElasticTask(**json.loads(sys.argv[1]))
    LOOPS[task.loop](task)
