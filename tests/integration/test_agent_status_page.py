"""The status page in a real browser: what it shows, that it stays live, and that nothing comes from elsewhere."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from tests.support import bundles
from tests.support.agent import Agent

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--enable-logging=stderr",
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: the page is tested without a browser only"),
]


def browse(url: str, folder: Path, *options: str) -> tuple[str, str, list[dict[str, object]]]:
    """The page as the browser has it after some seconds, its messages, and its requests.

    The seconds are virtual: the browser's clock jumps to the next timer.
    """
    log = folder / "network.json"
    command = [
        str(CHROMIUM),
        *OPTIONS,
        f"--user-data-dir={folder / 'profile'}",
        f"--log-net-log={log}",
        "--virtual-time-budget=5000",
        "--dump-dom",
        *options,
        url,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    network = json.loads(log.read_text())
    kinds = {number: name for name, number in network["constants"]["logEventTypes"].items()}
    requests = [
        event["params"]
        for event in network["events"]
        if kinds[event["type"]] == "URL_REQUEST_START_JOB" and "url" in event.get("params", {})
    ]
    return done.stdout, done.stderr, requests


def test_the_page_in_a_browser(tmp_path: Path) -> None:
    bundle = bundles.make_bundle(tmp_path)
    with Agent(bundle=bundle) as agent:
        for _ in range(5):
            httpx.post(f"{agent.url}/v1/embeddings", json={"model": "tiny", "input": ["the cat", "hello"]})
        httpx.post(f"{agent.url}/v1/embeddings", json={"model": "other", "input": "x"})
        dom, messages, requests = browse(f"{agent.url}/", tmp_path)
        text = " ".join(re.sub(r"<(style|script)>.*?</\1>|<[^>]+>", " ", dom, flags=re.DOTALL).split())
        for part in (
            "ready: requests are taken",
            "tiny 1.0.0",
            "answered requests 5",
            "answered texts 10",
            "404 1",
            "model not found 1",
        ):
            assert part in text, part
        assert "Content Security Policy" not in messages
        assert "SyntaxError" not in messages
        # The script has fetched the page again, and the new one tells of the first answer.
        ours = [str(each["url"]) for each in requests if urlsplit(str(each["url"])).netloc == agent.address]
        assert ours.count(f"{agent.url}/") >= 2
        assert re.search(r"200 ([6-9]|\d\d)\b", text)
        # What the page itself asked for went to the agent, and nowhere else.
        asked = [str(each["url"]) for each in requests if str(each.get("initiator", "")).startswith(agent.url)]
        assert asked
        assert {urlsplit(url).netloc for url in asked if not url.startswith("data:")} == {agent.address}
