"""Cohorts: every share is what was asked for, and devices are spread as by chance."""

from __future__ import annotations

import hashlib

from hypothesis import given
from hypothesis import strategies as st

from edgeonnx.spec.rollout import WHOLE, Channel, ModelOffers, Offer, OfferState, position

FLEET = [f"device-{number}" for number in range(20_000)]
CELLS = 100
CONTENTS = hashlib.sha256(b"a release").hexdigest()
OTHER = hashlib.sha256(b"another").hexdigest()


def test_positions_are_uniform_over_a_fleet_with_numbered_ids() -> None:
    counts = [0] * CELLS
    for device in FLEET:
        counts[position(device, CONTENTS) * CELLS // WHOLE] += 1
    expected = len(FLEET) / CELLS
    chi_square = sum((count - expected) ** 2 / expected for count in counts)
    # 99 degrees of freedom: a uniform distribution is outside of 56 to 158 once in 10,000 times on either side.
    assert 56 < chi_square < 158


def test_positions_in_two_releases_are_independent() -> None:
    cells = 10
    counts = [0] * (cells * cells)
    for device in FLEET:
        first, second = (position(device, contents) * cells // WHOLE for contents in (CONTENTS, OTHER))
        counts[first * cells + second] += 1
    expected = len(FLEET) / len(counts)
    assert 56 < sum((count - expected) ** 2 / expected for count in counts) < 158


def test_a_share_is_what_was_asked_for_and_grows_without_loss() -> None:
    before: set[str] = set()
    for percent in (1, 10, 50, 100):
        offer = Offer(version="1.0.0", contents=CONTENTS, share=percent * WHOLE // 100)
        taken = {device for device in FLEET if offer.includes(device)}
        assert before <= taken
        assert abs(len(taken) / len(FLEET) - percent / 100) < 0.01
        before = taken
    assert len(before) == len(FLEET)


@given(st.text(max_size=40), st.integers(0, WHOLE))
def test_a_share_of_all_takes_everybody_and_one_of_nothing_nobody(device: str, share: int) -> None:
    place = position(device, CONTENTS)
    assert 0 <= place < WHOLE
    assert Offer(version="1", contents=CONTENTS, share=WHOLE).includes(device)
    assert not Offer(version="1", contents=CONTENTS, share=0).includes(device)
    assert Offer(version="1", contents=CONTENTS, share=share).includes(device) == (place < share)


names = st.from_regex(r"[a-z0-9][a-z0-9-]{0,20}", fullmatch=True).filter(
    lambda name: name not in ("con", "prn", "aux", "nul") and name[:3] not in ("com", "lpt")
)


@given(
    names,
    st.dictionaries(
        names,
        st.lists(
            st.tuples(st.integers(0, 99), st.integers(0, WHOLE), st.sampled_from(OfferState)),
            unique_by=lambda each: each[0],
            max_size=4,
        ),
        max_size=3,
    ),
    st.none() | st.just("1.0.0"),
)
def test_a_channel_is_read_as_it_was_written(
    name: str, models: dict[str, list[tuple[int, int, OfferState]]], minimum: str | None
) -> None:
    channel = Channel(
        name=name,
        models={
            model: ModelOffers(
                offers=tuple(
                    Offer(version=f"1.{number}", contents=format(number, "064x"), share=share, state=state)
                    for number, share, state in offers
                ),
                minimum_version=minimum,
            )
            for model, offers in models.items()
        },
    )
    assert Channel.from_bytes(channel.to_bytes()) == channel
