"""How rows are grouped for the runtime. Pure: lengths in, groups out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def split_by_tokens(lengths: NDArray[np.int64], budget: int) -> list[NDArray[np.intp]]:
    """Group rows so that no group is larger than `budget` tokens, padding included (longest row x rows).

    Rows of similar length come together, so little of a group is padding. A row that is longer than the budget is a
    group of its own.

    Args:
        lengths: int64 (rows,), tokens of each row; at least one row.
        budget: Tokens in one group.

    Returns:
        The groups, each an array of row numbers; every row is in exactly one. Rows of one length keep their order, and
        if all rows fit into one group, so do they.
    """
    if int(lengths.max()) * len(lengths) <= budget:  # the common case: nothing to split, nothing to sort
        return [np.arange(len(lengths))]
    order = np.argsort(lengths, kind="stable")
    groups = []
    start = 0
    for end in range(1, len(order) + 1):
        # Sorted ascending, so the row at `end` would be the longest of its group.
        if end == len(order) or int(lengths[order[end]]) * (end + 1 - start) > budget:
            groups.append(order[start:end])
            start = end
    return groups
