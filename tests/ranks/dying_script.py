"""Run by ``uneven run``: two workers train, and one of them is killed in its second step of the first epoch."""

import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from session_parts import Numbered, net

import uneven

DYING, EPOCHS = int(sys.argv[1]), 3

torch.set_num_threads(1)
uneven.Session(timeout_s=60).close()  # all are here: from now on a short time-out does not run while one still imports
session = uneven.Session(timeout_s=8)
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
session.setup(model, optimizer)
seen: list[list[int]] = [[] for _ in range(EPOCHS)]
steps = 0
loader = session.loader(Numbered(), 12)
for epoch in range(EPOCHS):
    for x, y, index in loader:
        steps += 1
        if session.rank == DYING and steps == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        seen[epoch] += index.tolist()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.02)
    with session.evaluation_model():
        pass
session.close()
assert session.world.run_directory is not None
Path(session.world.run_directory, f"{session.rank}.json").write_text(json.dumps(seen))
