"""One replica, trained by several threads of a worker without a lock; what differs from ``02_balanced.py`` is the loop.

    python examples/06_threads.py --threads 2                                          alone
    uneven run --nproc 2 --threads 2 --sync shadow:ma examples/06_threads.py     ShadowSync

The loop is a function that every thread calls, with a model and an optimizer over the same memory.
"""

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import uneven
from uneven.testing.digits import load_digits


def digits():
    """Training and test set; images are 1 × 8 × 8, between 0 and 1."""
    images, labels = load_digits()
    x = torch.tensor(images, dtype=torch.float32).view(-1, 1, 8, 8) / 16
    y = torch.tensor(labels)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    test, train = order[:360], order[360:]
    return TensorDataset(x[train], y[train]), TensorDataset(x[test], y[test])


def network():
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 4 * 4, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip


@torch.no_grad()
def accuracy(model, dataset):
    x, y = dataset.tensors
    return (model(x).argmax(1) == y).float().mean().item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--threads", type=int)
    options = parser.parse_args()

    session = uneven.Session(threads=options.threads)
    torch.manual_seed(0)
    train, test = digits()
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    model, optimizer = session.setup(model, optimizer)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=options.epochs)
    session.loader(train, global_batch_size=64 * session.world_size)
    steps = [0] * session.config.threads

    def loop(model, optimizer, batches):
        for x, y in batches:
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            session.log(loss=loss.item())
            steps[session.thread] += 1

    for _ in range(options.epochs):
        session.train(loop)
        scheduler.step()
    with session.evaluation_model():
        if session.rank == 0:
            print(f"steps of each thread: {', '.join(map(str, steps))}")
            print(f"test accuracy {accuracy(model, test):.3f}")


if __name__ == "__main__":
    main()
