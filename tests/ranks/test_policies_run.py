"""A policy from the command line, with a script that knows nothing of it."""

from __future__ import annotations

import re
from pathlib import Path

from uneven import journal
from uneven.policy.core.records import ExchangeRecord, StepRecord
from uneven_bench.forked.scripts import run_script

SCRIPT = """
import time
import torch
import uneven

session = uneven.Session()
model = torch.nn.Linear(5, 3)
model, optimizer = session.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
data = torch.utils.data.TensorDataset(torch.randn(240, 5), torch.zeros(240, dtype=torch.long))
loader = session.loader(data, global_batch_size=20)
for epoch in range(10):
    for x, y in loader:
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.005)  # an exchange beside the training takes a moment
"""


def test_any_script_trains_under_a_policy_and_the_journal_tells_of_its_exchanges(tmp_path: Path) -> None:
    """It does not even close the session: the shadows come to an end when the programs do.

    No balance is given, and this policy has no shares to balance; the last line sums the run up.
    """
    (tmp_path / "train.py").write_text(SCRIPT)
    chosen = ["--nproc", "2", "--sync", "shadow:ma", "--run-dir", "run"]
    done = run_script(["-m", "uneven_bench.forked.run", "run", *chosen, "train.py"], cwd=tmp_path, timeout_s=100)
    assert done.returncode == 0, done.stderr
    first, second, last = [line for line in done.stderr.splitlines() if line.startswith("uneven: ")]
    assert "run directory run" in first
    assert second == "uneven: under sync = 'shadow:ma' no shares are balanced, so balance = 'even' is used"
    assert re.fullmatch(
        r"uneven: \d+ global batches, [\d,.]+ samples/s, [\d.]+ % waiting, shares \d+/\d+ → uneven watch run", last
    ), last
    ranks = journal.read(tmp_path / "run").ranks
    assert set(ranks) == {0, 1}
    samples = 0
    for records in ranks.values():
        steps = [one for one in records if isinstance(one, StepRecord)]
        exchanges = [one for one in records if isinstance(one, ExchangeRecord)]
        samples += sum(one.batch for one in steps)
        assert 1 <= len(exchanges) <= len(steps)
        assert {one.moment for one in exchanges} == {"background"}
        assert all(one.late >= 0 and one.gap >= 1 and one.sent_bytes > 0 for one in exchanges)
    assert samples == 10 * 240, "each worker as many as it came to"
