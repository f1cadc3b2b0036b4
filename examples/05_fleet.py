"""Four unlike networks trained at once on the 1,797 handwritten digits that come with uneven.

    python examples/05_fleet.py --epochs 8

Every epoch's images are shifted at random once, for all networks together. Stop it, start it again: it goes on.
"""

import argparse
from functools import partial

import torch
from torch import nn
from torch.utils.data import TensorDataset

import uneven.fleet as fleet
from uneven.testing.digits import load_digits


def digits():
    """Training and test set; images are 1 × 8 × 8, between 0 and 1."""
    images, labels = load_digits()
    x = torch.tensor(images, dtype=torch.float32).view(-1, 1, 8, 8) / 16
    y = torch.tensor(labels)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    test, train = order[:360], order[360:]
    return TensorDataset(x[train], y[train]), TensorDataset(x[test], y[test])


def shifted(sample):
    """The image moved by up to one pixel each way; drawn anew in every epoch."""
    image, label = sample
    padded = nn.functional.pad(image, (1, 1, 1, 1))
    top, left = torch.randint(0, 3, (2,)).tolist()
    return padded[:, top : top + 8, left : left + 8], label


def convolutional(width, batch_size):
    """A factory is called in another process, so it lies at the top level."""
    model = nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1), nn.ReLU(),
        nn.Conv2d(width, 2 * width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(2 * width * 4 * 4, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return fleet.Member(model, optimizer, batch_size=batch_size)


def perceptron():
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.2), nn.Linear(128, 10))
    return fleet.Member(model, torch.optim.Adam(model.parameters(), lr=3e-3), batch_size=32)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--directory", default="runs/fleet")
    options = parser.parse_args()
    train, test = digits()
    ensemble = fleet.Ensemble(
        members={
            "narrow": partial(convolutional, width=4, batch_size=64),
            "medium": partial(convolutional, width=8, batch_size=64),
            "wide": partial(convolutional, width=16, batch_size=128),
            "perceptron": perceptron,
        },
        dataset=train,
        transform=shifted,
        validate=test,
        metric=fleet.accuracy,
        converged=fleet.plateau(patience=3),
        max_epochs=options.epochs,
    )
    result = fleet.train(ensemble, devices=2, directory=options.directory)
    print(result)
    x, y = test.tensors
    together = result.predict(x, through=lambda z: z.softmax(-1)).argmax(1)
    print(f"test accuracy {(together == y).float().mean().item():.3f}, all together")


if __name__ == "__main__":  # new processes import this file, and must not train in it
    main()
