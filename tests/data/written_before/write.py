"""Wrote the folders next to it: ``uneven run --nproc 2 --sync POLICY --run-dir DIR/run write.py DIR``."""

import sys
from pathlib import Path

import torch
from torch.utils.data import TensorDataset

import uneven

FOLDER = Path(sys.argv[1])
STEPS = 12

session = uneven.Session()
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 2))
model, optimizer = session.setup(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
data = TensorDataset(torch.randn(96, 4, generator=torch.Generator().manual_seed(1)), torch.arange(96) % 2)
loader = session.loader(data, global_batch_size=12)
step = 0
while step < STEPS:
    for x, y in loader:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        step += 1
        if step == STEPS:
            break
state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "session": session.state_dict()}
if session.rank == 0:
    torch.save(state, FOLDER / "checkpoint.pt")
