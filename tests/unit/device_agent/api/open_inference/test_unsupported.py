from __future__ import annotations

import pytest


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/v2/trace/setting", "trace settings are not supported"),
        ("/v2/models/tiny/trace/setting", "trace settings are not supported"),
        ("/v2/logging", "log settings cannot be changed"),
        ("/v2/systemsharedmemory/status", "shared memory is not supported"),
        ("/v2/systemsharedmemory/region/r/register", "shared memory is not supported"),
        ("/v2/cudasharedmemory/region/r/unregister", "shared memory is not supported"),
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_refused_in_words(connect, method: str, path: str, message: str) -> None:
    response = connect().request(method, path)
    assert response.status_code == 400
    assert response.json()["error"].startswith(f"{path}: {message}")
