"""The producer and the member of :mod:`uneven_bench.fleet.tensor_socket`, each a process, with our work-arounds."""

import logging
import multiprocessing
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection
from typing import Any

import psutil
import torch
from torch.utils.data import DataLoader, Sampler

from uneven.errors import TrainingError
from uneven.fleet import Ensemble
from uneven.runtime.jobs.call import telling
from uneven_bench.fleet.baseline import FORKED, Prepared, fit
from uneven_bench.fleet.cases import BATCH

TOGETHER = 8  # TensorSocket's default number of loader batches in a message


def loader_batches(samples: int, batch: int) -> tuple[int, int]:
    """Return the batches of an epoch that reach the members, with all samples, and those that the loader needs for it:
    a group of eight goes out only when more follow."""
    arrive = -(-samples // (batch * TOGETHER)) * TOGETHER
    return arrive, arrive + 1


class PaddedOrder(Sampler[int]):
    """A random order of the samples, then -1, a throw-away sample, up to ``length``; after ``epochs`` only those, as
    the producer asks its loader for one epoch too many."""

    def __init__(self, samples: int, length: int, epochs: int) -> None:
        self._samples = samples
        self._length = length
        self._left = epochs

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[int]:
        order = torch.randperm(self._samples).tolist() if self._left > 0 else []
        self._left -= 1
        return iter(order + [-1] * (self._length - len(order)))


class Padded(Prepared):
    """Prepared samples; index -1 is a sample prepared once."""

    def __init__(self, ensemble: Ensemble) -> None:
        super().__init__(ensemble.dataset, ensemble.transform)
        self._spare = super().__getitem__(0)

    def __getitem__(self, index: int) -> Any:
        return self._spare if index < 0 else super().__getitem__(index)


def loader(ensemble: Ensemble, workers: int) -> DataLoader[Any]:
    data = Padded(ensemble)
    _, needed = loader_batches(len(data), BATCH)
    order = PaddedOrder(len(data), needed * BATCH, ensemble.max_epochs)
    return DataLoader(data, BATCH, sampler=order, num_workers=workers, **FORKED)


class Packing:
    """Packed batches as arrays, the same objects for all members, so that they are pickled once."""

    def __init__(self) -> None:
        self._views: dict[tuple[int, torch.Size], Any] = {}

    def __call__(self, batch: tuple[torch.Tensor, ...]) -> tuple[Any, ...]:
        # A view shares the memory of the tensor, so it always shows the current contents.
        return tuple(self._views.setdefault((part.data_ptr(), part.shape), part.numpy()) for part in batch)


def unpack(batch: tuple[Any, ...]) -> tuple[torch.Tensor, ...]:
    return tuple(torch.from_numpy(part) for part in batch)


class EpochBatches:
    """The batches of one epoch at each iteration over it, without throw-away samples. ``ended`` is called after a whole
    epoch. Raises TrainingError: an epoch had too few batches or too many."""

    def __init__(
        self, consumer: Iterable[tuple[torch.Tensor, ...]], samples: int, batch: int, ended: Callable[[], None]
    ) -> None:
        self._consumer = consumer
        self._samples = samples
        self._batch = batch
        self._ended = ended

    def __iter__(self) -> Iterator[tuple[torch.Tensor, ...]]:
        expected = loader_batches(self._samples, BATCH)[0] * BATCH // self._batch
        left, came = self._samples, 0
        for parts in self._consumer:
            came += 1
            if came > expected:
                break
            if left > 0:
                yield tuple(part[:left] for part in parts)
                left -= len(parts[0])
        if came != expected:
            more = "more than " if came > expected else ""
            raise TrainingError(f"of an epoch's {expected} batches TensorSocket delivered {more}{min(came, expected)}")
        self._ended()


def produce(connection: Connection, ensemble: Ensemble, ports: tuple[int, ...], workers: int) -> None:
    """Be the producer. A message begins it, and one each the next epochs; at the end, ``("cpu", seconds)`` of this
    process and its loaders."""
    with telling(lambda text: connection.send(("failed", text))):
        _keep_output_clean()
        from tensorsocket import TensorProducer

        torch.set_num_threads(1)
        torch.manual_seed(ensemble.seed)
        heard = _listen(connection)
        connection.send(("ready",))
        heard.get()
        began_s = time.process_time()
        source = loader(ensemble, workers)
        producer = TensorProducer(source, port=ports[0], ack_port=ports[1], heart_ports=ports[2:], pack_fn=Packing())
        producer.hb.handle_heart_failure = lambda heart: None
        _meet(producer, len(ensemble.members), lambda: connection.send(("met",)), heard)
        for _ in range(ensemble.max_epochs):
            for _ in producer:
                pass
            heard.get()
        used = [child.cpu_times() for child in psutil.Process().children()]
        connection.send(("cpu", time.process_time() - began_s + sum(one.user + one.system for one in used)))
        threading.Event().wait()  # its loaders are ended with it


def consume(connection: Connection, ensemble: Ensemble, name: str, ports: tuple[int, ...]) -> None:
    """Train one member; send ``("ended", name)`` after each epoch's batches, then ``("done", name, …)``."""
    with telling(lambda text: connection.send(("failed", text))):
        _keep_output_clean()
        from tensorsocket import TensorConsumer

        torch.set_num_threads(1)
        heard = _listen(connection)
        connection.send(("ready",))
        heard.get()
        torch.manual_seed(ensemble.seed)
        member, began_s = ensemble.members[name](), time.perf_counter()
        consumer = TensorConsumer(
            port=ports[0], ack_port=ports[1], heart_ports=ports[2:], unpack_fn=unpack, batch_size=member.batch_size
        )
        connection.send(("joined", name))
        while heard.empty():  # the first messages may be lost, so repeat them
            consumer.ack_socket.send_multipart([str(consumer.consumer_id).encode(), b"-1", b"0"])
            time.sleep(_HELLO_S)
        joined_s = time.perf_counter() - began_s
        batches = EpochBatches(
            consumer, len(ensemble.dataset), member.batch_size, lambda: connection.send(("ended", name))
        )
        worth, waited_s, took_s = fit(ensemble, member, batches)
        connection.send(("done", name, worth, waited_s + joined_s, took_s + joined_s))
        threading.Event().wait()  # it is ended with the others


_HELLO_S = 0.02


def _meet(producer: Any, members: int, met: Callable[[], None], heard: queue.SimpleQueue[Any]) -> None:
    """Wait until messages go both ways with every member."""
    producer.loader_batch_size = BATCH  # part of the first message
    # ZeroMQ drops messages on a connection that is not up yet, and TensorSocket waits for a lost one without end.
    while heard.empty():  # all members have had it
        producer._send_consumer_len()
        time.sleep(_HELLO_S)
    heard.get()
    known: set[bytes] = set()
    while len(known) < members or len(producer.hb.hearts) < members:
        if producer.ack_socket.poll(10):
            known.add(producer.ack_socket.recv_multipart()[0])
    met()
    heard.get()  # drop the remaining greetings
    while producer.ack_socket.poll(5 * 1000 * _HELLO_S):
        producer.ack_socket.recv_multipart()


def _keep_output_clean() -> None:
    """Configure logging before the import, which would send every record to standard output."""
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING)


def _listen(connection: Connection) -> queue.SimpleQueue[Any]:
    """Return a queue of messages; the end of the connection ends this process, as TensorSocket waits for dead peers."""
    heard: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def listen() -> None:
        try:
            while True:
                heard.put(connection.recv())
        except (EOFError, ConnectionResetError):
            for worker in multiprocessing.active_children():
                worker.kill()
            os._exit(0)

    threading.Thread(target=listen, daemon=True).start()
    return heard
