from __future__ import annotations

import asyncio
import gc
import signal
import socket
import sys
from pathlib import Path

import pytest

from device_agent.config import AgentConfig, ServerConfig
from device_agent.server import bind, serve, url_of
from edgeonnx.errors import GoldenSetError, UsageError
from tests.support import bundles


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


def test_the_url_of_an_encrypted_listener() -> None:
    with bind("127.0.0.1", 0) as listener:
        assert url_of(listener, "https").startswith("https://127.0.0.1:")


def serve_until_ready(config: AgentConfig) -> list[object]:
    """What `on_ready` was called with, in an agent that gets SIGTERM right after that."""
    seen: list[object] = []

    async def scenario() -> None:
        async def stop() -> None:
            while not seen:
                await asyncio.sleep(0.01)
            signal.raise_signal(signal.SIGTERM)

        stopping = asyncio.create_task(stop())
        assert await serve(bind("127.0.0.1", 0), None, config, lambda loaded: seen.append(loaded and loaded.name))
        await stopping

    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    interval = sys.getswitchinterval()
    try:
        asyncio.run(asyncio.wait_for(scenario(), 20))
    finally:
        sys.setswitchinterval(interval)
        gc.unfreeze()
        for number, handler in handlers.items():
            signal.signal(number, handler)
    return seen


def test_an_agent_without_a_bundle_is_ready_with_no_model(tmp_path: Path) -> None:
    assert serve_until_ready(AgentConfig(repository=tmp_path)) == [None]


def test_the_default_model_is_told_to_whoever_started_the_agent(tmp_path: Path) -> None:
    paths = (bundles.make_bundle(tmp_path), bundles.make_bundle(tmp_path, name="other"))
    assert serve_until_ready(AgentConfig(bundles=paths)) == ["tiny"]


def test_where_no_model_loads_the_error_is_raised_and_the_port_is_free_again(tmp_path: Path) -> None:
    listener = bind("127.0.0.1", 0)
    port = listener.getsockname()[1]
    config = AgentConfig(bundles=(bundles.make_bundle(tmp_path, bias=0.1),))
    with pytest.raises(GoldenSetError):
        asyncio.run(serve(listener, None, config, lambda loaded: pytest.fail("ready")))
    gc.unfreeze()
    bind("127.0.0.1", port).close()


def test_an_address_that_others_reach_needs_a_token(tmp_path: Path) -> None:
    config = AgentConfig(repository=tmp_path, server=ServerConfig(host="0.0.0.0"))
    with pytest.raises(UsageError, match="no token is asked"):
        asyncio.run(serve(bind("127.0.0.1", 0), None, config, lambda loaded: pytest.fail("ready")))
