"""Shares of the fleet as people write them."""

from __future__ import annotations

import pytest

from edgeonnx.errors import UsageError
from edgeonnx.repository.share import parse_share, show_share
from edgeonnx.spec.rollout import WHOLE


@pytest.mark.parametrize(
    ("text", "share"),
    [
        ("0%", 0),
        ("10%", 100_000),
        ("100%", WHOLE),
        ("0.1%", 1_000),
        ("0.0001%", 1),
        ("33.3333%", 333_333),
        ("0.0003%", 3),  # 0.0003 * 10000 is 2.9999999999999996 in binary
        (" 50 % ", 500_000),
        ("250ppm", 250),
        ("1000000ppm", WHOLE),
    ],
)
def test_a_share_is_exact(text: str, share: int) -> None:
    assert parse_share(text, where="--to") == share


@pytest.mark.parametrize(
    "text",
    ["", "10", "0.5", "101%", "100.0001%", "-1%", "1e1%", "0.00001%", ".5%", "ten%", "1000001ppm", "0.5ppm"],
)
def test_what_is_no_share_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="no share of the fleet"):
        parse_share(text, where="--to")


@pytest.mark.parametrize("share", [0, 1, 10, 99, 2_500, 100_000, 333_333, 999_999, WHOLE])
def test_what_is_shown_is_read_back(share: int) -> None:
    assert parse_share(show_share(share), where="--to") == share


def test_a_share_is_shown_as_short_as_can_be() -> None:
    assert [show_share(each) for each in (0, 100_000, 2_500, WHOLE)] == ["0%", "10%", "0.25%", "100%"]
