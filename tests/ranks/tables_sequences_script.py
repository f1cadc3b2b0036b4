"""Attention over sequences, and a cross, on however many workers; rank 0 saves the rows."""

import sys

import torch
from torch import nn
from torch.utils.data import TensorDataset

import uneven
from uneven.embedding import SGD, EmbeddingCollection, Table

BATCH, STEPS = 12, 4
TABLES = [
    Table(40, 4, "item", ["item", "history"], no_id=0, scale=1.0),
    Table(30, 4, "user", scale=1.0),
    Table(3000, 4, "pair", crossed=("user", "item"), no_id=0, scale=1.0),
]


class Model(nn.Module):
    def __init__(self, tables):
        super().__init__()
        self.tables = tables
        self.query, self.top = nn.Linear(4, 4), nn.Linear(12, 1)

    def forward(self, ids):
        rows = self.tables({"item": ids[:, 0], "user": ids[:, 1], "history": ids[:, 2:]})
        history, mask = rows.padded("history")
        score = (self.query(rows["item"])[:, None] * history).sum(2).masked_fill(~mask, -1e9)
        pooled = (score.softmax(1)[:, :, None] * history).sum(1)
        return self.top(torch.cat([pooled, rows["user"], rows["pair"]], 1)).squeeze(1)


def data():
    made = torch.Generator().manual_seed(3)
    ids = torch.randint(1, 30, (BATCH * STEPS, 7), generator=made)
    ids[:, 4:] *= torch.randint(0, 2, (len(ids), 3), generator=made)  # padding
    return TensorDataset(ids, 3 * torch.rand(len(ids), generator=made))


if __name__ == "__main__":
    torch.manual_seed(0)
    file, shares = sys.argv[1:]
    session = uneven.Session(balance=f"static:shares={shares}")
    model = Model(EmbeddingCollection(TABLES, optimizer=SGD(lr=0.5)))
    model, optimizer = session.setup(model, torch.optim.SGD(model.parameters(), lr=0.5))
    before = {key: one.clone() for key, one in model.state_dict().items()}
    for ids, target in session.loader(data(), global_batch_size=BATCH, shuffle=False):
        out = model(ids)
        model.tables.flush()  # all workers have their rows before any of them sends a gradient
        (out - target).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        model.tables.flush()
    if session.rank == 0:
        torch.save((before, model.state_dict()), file)
