"""The agent as a process: starting, refusing to start, draining, stopping."""

from __future__ import annotations

import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest

from tests.support import bundles
from tests.support.agent import ROOT, Agent, command, environment, run_to_end

GOOD = {"model": "tiny", "input": "the cat"}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bundles.make_bundle(tmp_path_factory.mktemp("lifecycle"))


@contextmanager
def half_sent(agent: Agent) -> Iterator[http.client.HTTPConnection]:
    """A request of which the head and half the body have arrived: it is in flight until `finish` sends the rest."""
    host, port = agent.address.split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=10)
    body = json.dumps(GOOD).encode()
    connection.putrequest("POST", "/v1/embeddings")
    connection.putheader("Content-Length", str(len(body)))
    connection.endheaders(body[:10])
    wait_for(lambda: "edgeonnx_requests_in_flight 1.0" in httpx.get(f"{agent.url}/metrics").text)
    yield connection
    connection.close()


def finish(connection: http.client.HTTPConnection) -> http.client.HTTPResponse:
    connection.send(json.dumps(GOOD).encode()[10:])
    return connection.getresponse()


def wait_for(condition, seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.01)


def test_the_ready_line_tells_address_model_variant_provider_and_time(tiny: Path) -> None:
    with Agent(bundle=tiny) as agent:
        pattern = r"ready: http://127\.0\.0\.1:\d+ serves tiny 1\.0\.0, variant cpu-fp32 \(fp32\) on "
        assert re.fullmatch(pattern + r"CPUExecutionProvider, after \d+\.\d\d s", agent.ready_line)
        assert httpx.get(f"{agent.url}/v2/health/ready").status_code == 200


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_idle_agent_stops_at_once(tiny: Path, number: signal.Signals) -> None:
    with Agent(bundle=tiny) as agent, httpx.Client(base_url=agent.url) as idle_keep_alive:
        idle_keep_alive.get("/v2/health/live")
        agent.process.send_signal(number)
        assert agent.wait(timeout=5) == 0
    assert "Traceback" not in agent.log


def test_a_request_in_flight_is_answered_while_new_ones_are_refused(tiny: Path) -> None:
    with Agent(bundle=tiny) as agent:
        with half_sent(agent) as connection:
            agent.terminate()
            wait_for(lambda: httpx.get(f"{agent.url}/v2/health/ready").status_code == 503)
            assert httpx.get(f"{agent.url}/v2/health/live").status_code == 200
            refused = httpx.post(f"{agent.url}/v1/embeddings", json=GOOD)
            assert refused.status_code == 503
            assert refused.json()["error"]["code"] == "not_ready"
            response = finish(connection)
            assert response.status == 200
            assert len(json.load(response)["data"]) == 1
        assert agent.wait(timeout=5) == 0
    assert "Traceback" not in agent.log


def test_a_second_signal_ends_the_wait(tiny: Path) -> None:
    with Agent(bundle=tiny) as agent, half_sent(agent):
        agent.terminate()
        wait_for(lambda: httpx.get(f"{agent.url}/v2/health/ready").status_code == 503)
        agent.terminate()
        assert agent.wait(timeout=5) == 0


SLOW_LOADER = """
import threading
import device_agent.models.loading as loading
from device_agent import server
load_model, bind = loading.load_model, server.bind
def slow(path, *args, **how):
    if path.name.startswith("slow"):
        threading.Event().wait()
    return load_model(path, *args, **how)
def told(*args):
    listener = bind(*args)
    print(server.url_of(listener), flush=True)
    return listener
loading.load_model, server.bind = slow, told
from device_agent.cli.main import main
main()
"""
"""An agent in which bundles whose folder begins with "slow" take forever to load; its first line is its URL."""


@contextmanager
def slow_agent(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Such an agent, and its URL."""
    line = [sys.executable, "-c", SLOW_LOADER, "serve", "--port", "0", *arguments]
    process = subprocess.Popen(line, cwd=ROOT, env=environment(), stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process, process.stdout.readline().strip()
    finally:
        process.kill()
        process.wait()
        if process.stdout:
            process.stdout.close()


def test_live_answers_while_the_model_loads(tiny: Path) -> None:
    slow = tiny.rename(tiny.parent / "slow")
    try:
        with slow_agent("--bundle", str(slow)) as (process, url):
            assert httpx.get(f"{url}/v2/health/live", timeout=10).status_code == 200
            response = httpx.get(f"{url}/v2/health/ready")
            assert (response.status_code, response.headers["retry-after"]) == (503, "1")
            process.terminate()
            assert process.wait(timeout=5) == 0
    finally:
        slow.rename(tiny)


def test_an_agent_that_loads_a_model_by_request_stops_at_once(tiny: Path, tmp_path: Path) -> None:
    bundles.make_bundle(tmp_path, name="slow")
    with slow_agent("--bundle", str(tiny), "--repository", str(tmp_path)) as (process, url):
        wait_for(lambda: httpx.get(f"{url}/v2/health/ready").status_code == 200)
        asking = threading.Thread(target=ask_and_forget, args=(f"{url}/v2/repository/models/slow/load",))
        asking.start()
        wait_for(lambda: "LOADING" in httpx.post(f"{url}/v2/repository/index", json={}).text)
        assert httpx.post(f"{url}/v1/embeddings", json=GOOD).status_code == 200
        process.terminate()
        assert process.wait(timeout=5) == 0
        asking.join(timeout=5)


def ask_and_forget(url: str) -> None:
    with suppress(httpx.HTTPError):
        httpx.post(url, json={}, timeout=10)


def test_tokens_are_read_again_on_sighup(tiny: Path, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.touch(mode=0o600)
    tokens.write_text("first-token-of-the-box\n")
    with Agent(bundle=tiny, arguments=("--token-file", str(tokens))) as agent:

        def status(token: str) -> int:
            headers = {"Authorization": f"Bearer {token}"}
            return httpx.post(f"{agent.url}/v1/embeddings", json=GOOD, headers=headers).status_code

        assert [status("first-token-of-the-box"), status("second-token-of-the-box")] == [200, 401]
        tokens.write_text("second-token-of-the-box\n")
        agent.process.send_signal(signal.SIGHUP)
        wait_for(lambda: status("second-token-of-the-box") == 200)
        assert status("first-token-of-the-box") == 401


def test_a_token_file_that_cannot_be_used(tiny: Path, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.touch(mode=0o600)
    done = run_to_end(tiny, "--token-file", str(tokens))
    assert done.returncode == 2
    assert "holds no token" in done.stderr
    assert "Traceback" not in done.stderr


def test_no_bundle(tmp_path: Path) -> None:
    done = run_to_end(tmp_path)
    assert done.returncode == 5
    assert "is not a bundle" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_a_damaged_bundle(tmp_path: Path) -> None:
    bundle = bundles.make_bundle(tmp_path)
    tensor = next(path for path in (bundle / "shared_assets").glob("*/*") if re.fullmatch("[0-9a-f]{64}", path.name))
    data = bytearray(tensor.read_bytes())
    data[0] ^= 1
    tensor.write_bytes(data)
    done = run_to_end(bundle)
    assert done.returncode == 5
    assert tensor.name in done.stderr
    assert "Traceback" not in done.stderr


def test_a_model_that_does_not_reproduce_its_golden_set(tmp_path: Path) -> None:
    done = run_to_end(bundles.make_bundle(tmp_path, bias=0.1))
    assert done.returncode == 6
    assert "the golden set is not reproduced" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_variant_that_is_not_there(tiny: Path) -> None:
    done = run_to_end(tiny, "--variant", "cpu-int8")
    assert done.returncode == 6
    assert "cpu-int8" in done.stderr


def test_a_port_that_is_taken(tiny: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = run_to_end(tiny, "--port", str(taken.getsockname()[1]))
    assert done.returncode == 2
    assert "--port 0 takes a free one" in done.stderr


@pytest.mark.parametrize("after", [0.3, 0.6, 0.9])
def test_a_signal_while_the_agent_starts_stops_it_in_order(tiny: Path, after: float) -> None:
    process = subprocess.Popen(command(tiny), cwd=ROOT, env=environment(), stderr=subprocess.PIPE, text=True)
    time.sleep(after)
    process.terminate()
    _, stderr = process.communicate(timeout=10)
    assert process.returncode in (0, -signal.SIGTERM)  # the latter before the command line was even read
    assert "Traceback" not in stderr
