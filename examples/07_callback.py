"""A callback of your own between gradients and optimizer, exact on unequal workers; ``InputScaling`` is all there is to
it.

    python examples/07_callback.py --epochs 2                                                       alone
    uneven run --nproc 2 --balance static:shares=3/1 examples/07_callback.py --save first.pt        three quarters, one
    torchrun --standalone --nproc-per-node 2 examples/07_callback.py --resume first.pt              goes on, in equal
    parts

It divides each gradient of a linear layer by the size of that layer's inputs, over the samples of all workers: the
first half of what K-FAC does, and on the same lines.
"""

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import uneven
from uneven.testing.digits import load_digits


class InputScaling(uneven.Callback):
    """Divides the gradient of each linear layer by the root mean square of each of its inputs, averaged over steps."""

    def __init__(self, decay=0.9, damping=0.1):
        self.decay, self.damping = decay, damping

    def attach(self, run):
        self.line = run.lines.open("input scaling")
        self.layers = [layer for layer in run.model.modules() if isinstance(layer, nn.Linear)]
        self.sizes = [layer.in_features for layer in self.layers]
        self.seen = torch.zeros(sum(self.sizes), dtype=self.layers[0].weight.dtype)
        self.average = torch.ones_like(self.seen)
        for layer, place in zip(self.layers, self.seen.split(self.sizes), strict=True):
            layer.register_forward_pre_hook(lambda layer, args, place=place: self.look(args[0], place))

    def look(self, inputs, place):
        if torch.is_grad_enabled():
            place.copy_(inputs.detach().square().mean(0))  # over this worker's samples

    def gradients_ready(self, step, optimizer):
        mean = self.seen * step.weight  # x_i / X
        self.line.sum(mean).wait()  # over the samples of all
        self.average.lerp_(mean, 1 - self.decay)
        for layer, average in zip(self.layers, self.average.split(self.sizes), strict=True):
            layer.weight.grad.div_(average.sqrt() + self.damping)

    def state_dict(self):
        return {"average": self.average}

    def load_state_dict(self, state):
        self.average.copy_(state["average"])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=1, help="how many more")
    parser.add_argument("--save", help="write a checkpoint here")
    parser.add_argument("--resume", help="go on from a checkpoint")
    options = parser.parse_args()

    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    images, labels = load_digits()
    x, y = torch.tensor(images[:500]) / 16, torch.tensor(labels[:500])
    model = nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)

    session = uneven.Session(callbacks=[InputScaling()])
    session.setup(model, optimizer)
    loader = session.loader(TensorDataset(x, y), global_batch_size=64)
    if options.resume:
        saved = torch.load(options.resume)
        model.load_state_dict(saved["model"])
        session.load_state_dict(saved["session"])

    for _ in range(options.epochs):
        for inputs, targets in loader:
            F.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
            optimizer.zero_grad()
    if session.rank == 0:
        accuracy = (model(x).argmax(1) == y).double().mean()
        print(f"accuracy {accuracy:.3f}")
        if options.save:
            torch.save({"model": model.state_dict(), "session": session.state_dict()}, options.save)


if __name__ == "__main__":
    main()
