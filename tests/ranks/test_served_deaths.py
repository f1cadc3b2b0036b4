"""A worker that dies under a policy with a parameter server does not stop the others."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from session_parts import N
from test_session_deaths import events, workers

DEAD, STEPS = 2, 1  # so early that the others, two steps ahead at most, are in the first epoch too
BATCH = 4  # samples of each of the three in a step

TRAIN = """
    import json
    import torch.nn.functional as F
    from session_parts import Numbered, net
    session.close()
    session = uneven.Session(sync=os.environ["SYNC"], balance="even", timeout_s=4, run_dir=run)
    torch.manual_seed(1)
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session.setup(model, optimizer)
    loader = session.loader(Numbered(), 12)
    seen, count = [[], [], []], 0
    for epoch in range(3):
        for x, y, index in loader:
            count += 1
            if rank == dying and count > {steps}:
                os.kill(os.getpid(), signal.SIGKILL)
            seen[epoch] += index.tolist()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            time.sleep(0.02)
        with session.evaluation_model():
            state = [one.tolist() for one in model.parameters()]
    session.close()
    with open(os.path.join(run, f"{{rank}}.json"), "w") as file:
        json.dump([seen, state], file)
    break
"""


@pytest.mark.parametrize("sync", ["ssp:staleness=2", "backup", "shadow:easgd"])
def test_the_others_go_on_without_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sync: str) -> None:
    """Under SSP it would be waited for most. ASP is with the tests of what the launcher does then."""
    monkeypatch.setenv("SYNC", sync)
    with workers(3, tmp_path, "pass", dying=DEAD, limit_s=60, always=TRAIN.format(steps=STEPS).lstrip()) as processes:
        errors = [process.communicate(100)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0, -signal.SIGKILL], errors
    (first, model), (second, other) = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1))
    assert model == other, "what is evaluated is one copy"
    for epoch in (1, 2):
        assert sorted(first[epoch] + second[epoch]) == list(range(N)), "every sample once, among those who are left"
    taken = sorted(first[0] + second[0])
    # With it go what it trained on, what it had in hand and one batch more; under a shadow, which asks ahead, all that
    # it may hold if answers come late: its equal part of the epoch.
    ahead = N // (3 * BATCH) if sync.startswith("shadow") else 0
    assert len(set(taken)) == len(taken) >= N - BATCH * (STEPS + 1 + ahead + 1)
    for rank in (0, 1):
        lost = [text for event, text in events(tmp_path, rank) if event == "lost"]
        assert len(lost) == 1
        assert lost[0].startswith("rank 2 is gone; its unfinished samples are lost")
