"""A small training with a session, which prints the loss before and after it."""

import sys

import torch
from torch.utils.data import TensorDataset

import uneven
from uneven.runtime.system import NAME

torch.manual_seed(0)
x = torch.randn(64, 4)
y = x @ torch.tensor([[1.0], [-2.0], [0.5], [3.0]])
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
with uneven.Session() as session:
    model, optimizer = session.setup(model, optimizer)
    loader = session.loader(TensorDataset(x, y), 16)
    before = torch.nn.functional.mse_loss(model(x), y).item()
    for _ in range(6):
        for inputs, targets in loader:
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(inputs), targets).backward()
            optimizer.step()
    rank, device = session.rank, session.device
    with session.evaluation_model():
        after = torch.nn.functional.mse_loss(model(x), y).item()
said = "learned" if after < 0.9 * before else f"{before} to {after}"
sys.stdout.write(f"{NAME} rank {rank} on {device}: {said}\n")  # print() may write the end of the line by itself
