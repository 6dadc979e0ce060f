from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from device_agent.config import AgentConfig
from device_agent.settings import Setting, all_settings, convert, read_settings
from device_agent.settings_text import to_toml
from edgeonnx.errors import UsageError

TEXT = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20).filter(str.isprintable)


def values(setting: Setting) -> st.SearchStrategy[Any]:
    """Values that a setting may have, as TOML gives them."""
    if setting.words:
        one: st.SearchStrategy[Any] = st.sampled_from(setting.words)
    elif setting.kind is bool:
        one = st.booleans()
    elif setting.kind is int:
        one = st.integers(int(setting.range.least) if setting.range else 1, int(setting.most))
    elif setting.kind is float:
        one = st.floats(setting.range.least if setting.range else 1e-6, setting.most)
    else:
        one = TEXT
    return st.lists(one, max_size=3, unique=True) if setting.many else one


@st.composite
def overrides(draw: st.DrawFn) -> dict[str, object]:
    chosen = draw(st.lists(st.sampled_from(sorted(all_settings())), unique=True))
    return {key: draw(values(all_settings()[key])) for key in chosen}


@settings(max_examples=30, deadline=None)
@given(overrides())
def test_settings_survive_being_printed_and_read(given_values: dict[str, object]) -> None:
    try:
        config = read_settings(None, given_values, {})
    except UsageError as error:
        # Each value may be had, so only two together can be wrong.
        if not error.details:
            raise AssertionError(error) from error
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "agent.toml")
        printed = to_toml(config)
        path.write_text(printed, encoding="utf-8")
        assert to_toml(read_settings(path, None, {})) == printed


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(sorted(all_settings())),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
        max_leaves=5,
    ),
)
def test_a_value_is_converted_or_refused_and_nothing_else(key: str, value: object) -> None:
    try:
        convert(all_settings()[key], value, key)
    except UsageError as error:
        if not error.expected:
            raise AssertionError(error) from error


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=80) | st.text(max_size=80).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_a_file_gives_settings_or_a_usage_error_and_nothing_else(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "agent.toml")
        path.write_bytes(data)
        with contextlib.suppress(UsageError):
            assert isinstance(read_settings(path, None, {}), AgentConfig)
