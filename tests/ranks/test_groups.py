"""What docs/architecture.md claims of process groups: one per set of members, made by its members alone."""

import torch
import torch.distributed as dist

from uneven.testing import RankContext, ranks


@ranks(4)
def test_two_rounds_over_rows_and_columns_give_the_exact_mean(me: RankContext) -> None:
    x = torch.tensor([float(me.rank**2)], dtype=torch.float64)
    groups = {}
    for turn in range(4):  # the second time around, the groups of the first are used again
        row, column = divmod(me.rank, 2)
        members = (2 * row, 2 * row + 1) if turn % 2 == 0 else (column, column + 2)
        if members not in groups:
            groups[members] = dist.new_group(list(members), use_local_synchronization=True)
        dist.all_reduce(x, group=groups[members])
        x /= 2
    assert x.item() == (0 + 1 + 4 + 9) / 4
    assert len(groups) == 2


@ranks(3)
def test_the_third_takes_no_part_in_a_group_of_two(me: RankContext) -> None:
    if me.rank < 2:
        group = dist.new_group([0, 1], use_local_synchronization=True)
        x = torch.tensor([me.rank + 1.0])
        dist.all_reduce(x, group=group)
        assert x.item() == 3.0
