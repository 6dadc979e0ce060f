from __future__ import annotations

import socket

import pytest

from device_agent.api.server import bind, url_of
from edgeonnx.errors import UsageError


def test_port_zero_takes_a_free_port_and_the_url_names_it() -> None:
    with bind("127.0.0.1", 0) as listener:
        assert url_of(listener) == f"http://127.0.0.1:{listener.getsockname()[1]}"
        assert listener.getsockname()[1] > 0


def test_the_protocol_is_named_so_that_asyncio_turns_nagle_off() -> None:
    with bind("127.0.0.1", 0) as listener:
        assert listener.proto == socket.IPPROTO_TCP


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 here")
def test_ipv6() -> None:
    try:
        listener = bind("::1", 0)
    except UsageError:
        pytest.skip("no IPv6 address here")
    with listener:
        assert url_of(listener).startswith("http://[::1]:")


def test_a_port_that_is_taken() -> None:
    with bind("127.0.0.1", 0) as listener, pytest.raises(UsageError, match="cannot be listened on"):
        bind("127.0.0.1", listener.getsockname()[1])


def test_a_host_that_is_not_here() -> None:
    with pytest.raises(UsageError, match=r"192\.0\.2\.1:0"):
        bind("192.0.2.1", 0)
