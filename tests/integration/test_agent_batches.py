"""A text's answer does not depend on what it was batched with: the real agent with the real all-MiniLM-L6-v2.

The row-wise int8 graph quantizes each row by itself, so a neighbour cannot move its scale. What is left is the order
in which fp32 parts (attention, layer norm) are summed up, which depends on the shape: of 1,447 rows in 75 batches the
largest difference was 6e-8 for int8, and of 253 rows 7.5e-8 for fp32.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import pytest

from edgeonnx.bundle import open_bundle
from tests.support.agent import Agent

pytestmark = pytest.mark.slow

EQUAL = 5e-7


@pytest.fixture(scope="module", params=["cpu-int8", "cpu-fp32"])
def agent(request: pytest.FixtureRequest, minilm_bundle: Path) -> Iterator[Agent]:
    with Agent(bundle=minilm_bundle, arguments=("--variant", request.param, "--runners", "2")) as running:
        yield running


def test_batched_equals_solo(agent: Agent, minilm_bundle: Path) -> None:
    texts = [*open_bundle(minilm_bundle).golden().texts[:24], "", "a", "word " * 200]
    with httpx.Client(base_url=agent.url, timeout=60) as client:

        def embed(*asked: str) -> np.ndarray:
            body = {"model": "minilm", "input": asked, "encoding_format": "base64"}
            response = client.post("/v1/embeddings", json=body)
            assert response.status_code == 200
            found = [base64.b64decode(item["embedding"]) for item in response.json()["data"]]
            return np.stack([np.frombuffer(item, dtype="<f4") for item in found])

        alone = np.concatenate([embed(text) for text in texts])
        assert np.abs(embed(*texts) - alone).max() <= EQUAL
        # And batched with the rows of other requests.
        with ThreadPoolExecutor(12) as pool:
            order = [*range(len(texts)), *reversed(range(len(texts)))]
            together = np.concatenate(list(pool.map(lambda at: embed(texts[at]), order)))
        assert np.abs(together - alone[order]).max() <= EQUAL
        rows = httpx.get(f"{agent.url}/metrics").text
        sums = {line.split("{")[0]: float(line.rsplit(" ", 1)[1]) for line in rows.splitlines() if "_rows_" in line}
        assert sums["edgeonnx_batch_rows_sum"] > sums["edgeonnx_batch_rows_count"] + 10  # there were real batches
