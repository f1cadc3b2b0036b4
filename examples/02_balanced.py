"""``01_plain.py`` on unequal workers; what differs is marked ``# uneven``.

    python examples/02_balanced.py                                      alone, as before
    uneven run --nproc 4 examples/02_balanced.py --epochs 10            on four workers
    torchrun --standalone --nproc-per-node 4 examples/02_balanced.py    the same, but no journal is kept

Every worker takes a part of each batch that fits its speed.
"""

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import uneven  # uneven
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
    epochs = parser.parse_args().epochs

    session = uneven.Session()  # uneven
    torch.manual_seed(0)
    train, test = digits()
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model, optimizer = session.setup(model, optimizer)  # uneven
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=epochs)
    loader = session.loader(train, global_batch_size=128)  # uneven: the batch of all workers together

    for epoch in range(epochs):
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            session.log(loss=loss.item())  # uneven
        scheduler.step()
        if session.rank == 0:  # uneven
            print(f"epoch {epoch}: loss {loss.item():.3f}")
    if session.rank == 0:  # uneven
        print(f"test accuracy {accuracy(model, test):.3f}")


if __name__ == "__main__":
    main()
