"""``uneven simulate --tables K --ahead N``."""

from __future__ import annotations

from pathlib import Path

import pytest

from uneven.cli import main

CLICKS = """
name = "clicks"
[[nodes]]
name = "a"
[[nodes]]
name = "b"
[workload]
global_batch = 256
per_sample_core_s = 50e-6
overhead_core_s = 0.0
gradient_bytes = 1
[tables]
features = 26
server_core_s = 40e-6
"""


def typed(cluster: str, *words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["simulate", cluster, "--sync", "local:every=20", "--iterations", "40", "--no-journal", *words])
    return int(str(ended.value.code))


def test_servers_are_as_many_as_asked_for_or_as_planned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cluster = tmp_path / "clicks.toml"
    cluster.write_text(CLICKS)
    assert typed(str(cluster), "--tables", "1", "--ahead", "0") == 0
    asked = " ".join(capsys.readouterr().out.split())
    assert "1 table server, 0 batches ahead: trainers waited for rows" in asked
    assert "the limit is latency" in asked
    assert typed(str(cluster)) == 0
    assert "2 table servers, 1 batch ahead" in " ".join(capsys.readouterr().out.split())


def test_a_cluster_without_tables_has_no_servers_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert typed("demo4", "--tables", "1") != 0
    assert "demo4 has no [tables]; see docs/how-to/describe-a-cluster.md" in " ".join(capsys.readouterr().err.split())
