"""Shares as people write them: `10%`, `0.5%`, `250ppm`. Pure and exact."""

from __future__ import annotations

import re
from decimal import Decimal

from edgeonnx.errors import UsageError
from edgeonnx.spec.rollout import WHOLE

_PERCENT = re.compile(r"([0-9]{1,3}(?:\.[0-9]{1,4})?)\s*%")
_PPM = re.compile(r"([0-9]{1,7})\s*ppm")
PPM_PER_PERCENT = WHOLE // 100


def parse_share(text: str, *, where: str) -> int:
    """A share of the fleet in parts per million.

    Raises:
        UsageError: It is no percentage with at most four decimals, nor a number of parts per million, or above 100 %.
    """
    percent, ppm = _PERCENT.fullmatch(text.strip()), _PPM.fullmatch(text.strip())
    if percent is not None:
        share = int(Decimal(percent.group(1)) * PPM_PER_PERCENT)
    elif ppm is not None:
        share = int(ppm.group(1))
    else:
        share = -1
    if not 0 <= share <= WHOLE:
        raise UsageError(
            "is no share of the fleet",
            where=where,
            expected="0% to 100%, with at most four decimals, or 0ppm to 1000000ppm",
            found=repr(text[:40]),
        )
    return share


def show_share(share: int) -> str:
    """The share as a percentage, exact and as short as can be."""
    text = f"{Decimal(share) / PPM_PER_PERCENT:f}"
    return f"{text.rstrip('0').rstrip('.') if '.' in text else text}%"
