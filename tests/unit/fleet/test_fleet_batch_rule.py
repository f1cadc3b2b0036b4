"""Batch and learning rate of a member whose number of devices changes."""

from __future__ import annotations

import pytest

from uneven.errors import ConfigError
from uneven.fleet.pure.batch_rule import BatchRule, global_batch, most_workers, rate_factor


def test_the_batch_is_kept_or_grows_with_the_devices() -> None:
    assert [global_batch(rule, 32, 4) for rule in BatchRule] == [32, 128, 128]
    assert [global_batch(rule, 32, 1) for rule in BatchRule] == [32, 32, 32]


def test_a_batch_is_not_divided_among_more_workers_than_it_has_samples() -> None:
    assert most_workers(BatchRule.KEEP, 8, 4, 1) == 4
    assert most_workers(BatchRule.KEEP, 3, 4, 1) == 3
    assert most_workers(BatchRule.KEEP, 7, 4, 2) == 3  # batch norm takes two on each
    assert most_workers(BatchRule.KEEP, 1, 4, 2) == most_workers(BatchRule.PAPER, 1, 4, 2) == 1
    assert most_workers(BatchRule.LINEAR, 3, 4, 2) == 4
    for bad in ((0, 1, 1), (1, 0, 1), (1, 1, 0)):
        with pytest.raises(ConfigError, match="give values of at least 1"):
            most_workers(BatchRule.KEEP, *bad)


def test_the_learning_rate_follows_a_change_over_one_epoch() -> None:
    rule = BatchRule.LINEAR
    assert [rate_factor(rule, 1, 3, step, 4) for step in range(4)] == [1.5, 2.0, 2.5, 3.0]
    assert [rate_factor(rule, 3, 3, step, 4) for step in range(2)] == [3.0, 3.0]
    assert rate_factor(rule, 4, 2, 3, 4) == 2.0
    assert rate_factor(rule, 1, 3, 9, 4) == 3.0
    for other in (BatchRule.KEEP, BatchRule.PAPER):
        assert rate_factor(other, 1, 3, 0, 4) == 1.0
