"""What users of TorchRec and ``nn.EmbeddingBag`` bring, on however many workers; rank 0 writes the rows down."""

import sys

import torch
from torch import nn
from torch.utils.data import TensorDataset

import uneven
from uneven.embedding import SGD, EmbeddingBagCollection, Table

BATCH, STEPS = 12, 4
TABLES = [
    Table(40, 4, "both", ["left", "right"], no_id=-1),
    Table(30, 4, "mean", ["left"], pooling="mean", no_id=0),
]


class Keyed:
    """As a KeyedJaggedTensor with fewer bags than samples answers: each distinct bag of a feature comes once."""

    def __init__(self, ids):
        found = [torch.unique(ids[:, feature], dim=0, return_inverse=True) for feature in range(ids.shape[1])]
        self._bags, self._inverse = [one[0] for one in found], torch.stack([one[1] for one in found])

    def keys(self):
        return ["left", "right"]

    def values(self):
        return torch.cat([one.reshape(-1) for one in self._bags])

    def lengths(self):
        return torch.cat([torch.full((len(one),), one.shape[1]) for one in self._bags])

    def stride_per_key(self):
        return [len(one) for one in self._bags]

    def inverse_indices_or_none(self):
        return self.keys(), self._inverse


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tables = EmbeddingBagCollection(TABLES, optimizer=SGD(lr=0.5))
        self.top = nn.Linear(12, 1)

    def forward(self, ids):
        return self.top(self.tables(ids).values()).squeeze(1)


def data():
    made = torch.Generator().manual_seed(3)
    ids = torch.randint(0, 30, (BATCH * STEPS, 2, 3), generator=made)
    ids[:, 1] -= 1
    ids[1::2] = ids[::2]  # so that batches have bags twice
    return TensorDataset(ids, torch.rand(len(ids), generator=made))


if __name__ == "__main__":
    torch.manual_seed(0)
    backend, file, shares = sys.argv[1:]
    session = uneven.Session(balance=f"static:shares={shares}")
    model = Model()
    model, optimizer = session.setup(model, torch.optim.SGD(model.parameters(), lr=0.5))
    compiled = torch.compile(model, backend=backend)
    before = {key: one.clone() for key, one in model.state_dict().items()}
    for ids, target in session.loader(data(), global_batch_size=BATCH, shuffle=False):
        out = compiled(Keyed(ids))
        model.tables.flush()  # all workers have looked their rows up before any of them gives a gradient
        (out - target).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        model.tables.flush()  # and the other way round
    if session.rank == 0:
        ids, target = (one.split(BATCH) for one in data().tensors)
        torch.save((before, model.state_dict(), list(zip(ids, target, strict=True))), file)
