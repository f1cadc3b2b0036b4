"""The shape of nanoGPT: windows are drawn from one long text by a ``get_batch`` of one's own.

    uneven run --nproc 4 --shares 0.6,0.4,0.2,0.1 examples/loops/nanogpt.py

What differs from ``nanogpt_plain.py``: the lines that name uneven or its session.
"""

import torch
import torch.nn.functional as F
from torch import nn

import uneven

CONTEXT, BATCH, STEPS = 16, 24, 12
torch.manual_seed(0)
text = torch.randint(0, 50, (4000,))


def get_batch():
    starts = torch.randint(len(text) - CONTEXT - 1, (BATCH,))
    x = torch.stack([text[start : start + CONTEXT] for start in starts])
    y = torch.stack([text[start + 1 : start + CONTEXT + 1] for start in starts])
    return x, y


class Tiny(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(50, 16), nn.Embedding(CONTEXT, 16)
        self.block = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.head = nn.Linear(16, 50)

    def forward(self, x):
        past = nn.Transformer.generate_square_subsequent_mask(CONTEXT)
        return self.head(self.block(self.tokens(x) + self.places(torch.arange(CONTEXT)), src_mask=past, is_causal=True))


model = Tiny()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
session = uneven.Session()
model, optimizer = session.setup(model, optimizer)

for _ in range(STEPS):
    with session.step(global_batch_size=BATCH):
        x, y = (one.split(session.shares)[session.rank] for one in get_batch())
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
