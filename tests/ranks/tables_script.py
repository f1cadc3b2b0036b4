"""Two trainers of two threads each, tables on servers, and S-EASGD through the parameter server."""

import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import uneven
from uneven.embedding import EmbeddingBagCollection, Table

N = 1536


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tables = EmbeddingBagCollection([Table(200, 8, "a"), Table(5000, 8, "b")])
        self.top = nn.Linear(16, 1)

    def forward(self, ids):
        return self.top(self.tables(ids).values()).squeeze(1)


def loop(model, optimizer, batches):
    for ids, target in batches:
        F.binary_cross_entropy_with_logits(model(ids), target).backward()
        optimizer.step()
        optimizer.zero_grad()


torch.manual_seed(0)
ids = torch.stack([torch.randint(0, 200, (N,)), torch.randint(0, 5000, (N,))], 1)
data = TensorDataset(ids, (ids[:, 0] < 100).float())
session = uneven.Session(sync="shadow:easgd", threads=2, balance="even")
model = Model()
model, optimizer = session.setup(model, torch.optim.Adagrad(model.parameters(), lr=0.05))
loader = session.loader(data, global_batch_size=64, ids=lambda batch: batch[0], ahead=1)
for _ in range(2):
    session.train(loop)
with session.evaluation_model(), torch.no_grad():
    right = float(((model(ids) > 0) == (data.tensors[1] > 0)).float().mean())
    torch.save(model.state_dict(), f"{session.rank}.pt")
    sums = sum(float(one.double().sum()) for one in model.tables.to_state_dict().values())
counts = model.tables.stats().counts
line = f"rank {session.rank} right {right:.3f} sum {sums:.9f} applied {counts['applied']} lookups {counts['lookups']}\n"
sys.stdout.write(line)
