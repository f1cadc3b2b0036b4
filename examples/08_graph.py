"""A graph neural network on the whole graph, on any number of workers: the same numbers as on one.

    python examples/08_graph.py                                  alone; first cuts the graph, into the folder parts
    uneven run --nproc 2 examples/08_graph.py                    on two workers
    uneven run --nproc 2 examples/08_graph.py --parts FOLDER     what uneven graph partition has written

The graph joins each handwritten digit with its nearest ones, and a tenth of them have labels to learn from. A file of
your own: uneven graph partition FILE FOLDER --capacities 4,1.
"""

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

import uneven
from uneven import graph
from uneven.testing.digits import load_digits


def write(folder):
    images, labels = load_digits()
    x, y = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
    near = torch.cdist(x, x).topk(9, largest=False).indices[:, 1:].flatten()  # the first is the digit itself
    each = torch.arange(len(x)).repeat_interleave(8)
    edges = torch.stack([torch.cat([near, each]), torch.cat([each, near])])
    learn = torch.rand(len(y), generator=torch.Generator().manual_seed(0)) < 0.1
    tensors = {"x": x, "y": y, "train_mask": learn, "test_mask": ~learn}
    graph.partition(edges, len(y), path=folder, shares=(3, 1), tensors=tensors)


class Net(nn.Module):
    def __init__(self, features, hidden, classes):
        super().__init__()
        self.first = graph.SAGEConv(features, hidden)
        self.second = graph.SAGEConv(hidden, classes)

    def forward(self, x, g):
        h = g.dropout(F.relu(self.first(x, g)), 0.5, self.training)
        return self.second(h, g)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--parts", type=Path, help="a folder with a cut graph")
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=40)
    options = parser.parse_args()
    folder = options.parts or Path("parts")
    if options.parts is None and not (folder / "graph.json").exists():
        write(folder)

    g = graph.load(folder)
    session = uneven.Session(callbacks=[g])
    x, y, learn, test = g.x, g.y, g.tensor("train_mask"), g.tensor("test_mask")
    torch.manual_seed(0)
    model = Net(x.shape[1], 32, options.classes)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    model, optimizer = session.setup(model, optimizer)

    for _ in range(options.epochs):
        model.train()
        with session.step(samples=g.samples):
            loss = g.loss(F.cross_entropy, model(x, g), y, learn)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        session.log(loss=loss.item())
    model.eval()
    with torch.no_grad():
        accuracy = g.accuracy(model(x, g), y, test)
    if session.rank == 0:
        print(f"test accuracy {accuracy:.3f}, {g.sent_bytes / options.epochs / 1e3:.1f} kB sent in an epoch")


if __name__ == "__main__":
    main()
