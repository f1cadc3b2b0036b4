"""What the tests of uneven.fleet send to other processes: it has to lie at the top level of a module."""

from __future__ import annotations

import os
import random
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch

from uneven.fleet.pure.sections import Stream
from uneven.fleet.stream.sample_ring import RingHandle
from uneven.fleet.stream.stream_reader import Reader


class Counted:
    """Samples that know their number: an image full of it, and the number itself."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((1, 3, 3), float(index)), index


def noisy(sample: tuple[torch.Tensor, int]) -> tuple[torch.Tensor, int]:
    """Augmentation that draws from all three sources of randomness."""
    image, label = sample
    return image + 0.1 * (random.random() + np.random.rand() + torch.rand(())), label


def fails_on_17(sample: tuple[torch.Tensor, int]) -> tuple[torch.Tensor, int]:
    if sample[1] == 17:
        raise ValueError("this one is broken")
    return sample


def grows_on_17(sample: tuple[torch.Tensor, int]) -> tuple[torch.Tensor, int]:
    return (torch.zeros(1, 4, 3) if sample[1] == 17 else sample[0]), sample[1]


def dies_on_17(sample: tuple[torch.Tensor, int]) -> tuple[torch.Tensor, int]:
    if sample[1] == 17:
        os._exit(3)
    return sample


class Hangs:
    """A transform that never comes back from one sample, and writes a line into a file each time that it begins."""

    def __init__(self, noted: Path, number: int = 17) -> None:
        self.noted, self.number = noted, number

    def __call__(self, sample: tuple[torch.Tensor, int]) -> tuple[torch.Tensor, int]:
        if sample[1] == self.number:
            with self.noted.open("a") as file:
                file.write("begun\n")
            threading.Event().wait()
        return sample


def read_all(connection: Connection, handle: RingHandle, stream: Stream, size: int, delay_s: float) -> None:
    """A reader: pass after pass, answer with the labels of each batch and the sum over all its images."""
    ring = handle.open()
    reader = Reader(connection, ring)
    reader.check(size)
    while True:
        epoch = connection.recv()
        for section in stream.sections(epoch):
            labels: list[list[int]] = []
            total = 0.0
            for images, numbers in reader.batches(section, size):
                time.sleep(delay_s)
                labels.append(numbers.tolist())
                total += float(images.double().sum())
            connection.send(("section", labels, total))


def spoil(connection: Connection, handle: RingHandle, *_: Any) -> None:
    """A reader that writes into what it was given."""
    ring = handle.open()
    connection.send(("mapped",))
    ring.batch(0, 2)[0].add_(1.0)
    connection.send(("spoilt",))
