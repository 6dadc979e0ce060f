"""The Open Inference Protocol v2 over REST, with Triton's extensions: its routes.

- `infer`: requests and responses; `binary` (framing), `fields`, `tensors`, `datatypes` (values), `request`, `response`;
- `metadata`: health, metadata, configuration;
- `repository`: index, load, unload;
- `statistics`: the counters of each model;
- `unsupported`: extensions that are refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from device_agent.api.open_inference import infer, metadata, repository, statistics, unsupported

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.requests import Request
    from starlette.responses import Response

    from device_agent.api.context import Context

    Handler = Callable[[Context, Request], Awaitable[Response]]

# The routes that carry the load come first: the router tries them in order.
ROUTES: tuple[tuple[str, str, Handler], ...] = (
    ("POST", "/v2/models/{name}/infer", infer.infer),
    ("POST", "/v2/models/{name}/versions/{version}/infer", infer.infer),
    ("GET", "/v2/health/live", metadata.live),
    ("GET", "/v2/health/ready", metadata.ready),
    ("GET", "/v2", metadata.server),
    ("GET", "/v2/models/stats", statistics.statistics),
    ("GET", "/v2/models/{name}", metadata.model),
    ("GET", "/v2/models/{name}/ready", metadata.model_ready),
    ("GET", "/v2/models/{name}/config", metadata.config),
    ("GET", "/v2/models/{name}/stats", statistics.statistics),
    ("GET", "/v2/models/{name}/versions/{version}", metadata.model),
    ("GET", "/v2/models/{name}/versions/{version}/ready", metadata.model_ready),
    ("GET", "/v2/models/{name}/versions/{version}/config", metadata.config),
    ("GET", "/v2/models/{name}/versions/{version}/stats", statistics.statistics),
    ("POST", "/v2/repository/index", repository.repository_index),
    ("POST", "/v2/repository/models/{name}/load", repository.load),
    ("POST", "/v2/repository/models/{name}/unload", repository.unload),
    ("GET", "/v2/trace/setting", unsupported.trace),
    ("POST", "/v2/trace/setting", unsupported.trace),
    ("GET", "/v2/models/{name}/trace/setting", unsupported.trace),
    ("POST", "/v2/models/{name}/trace/setting", unsupported.trace),
    ("GET", "/v2/logging", unsupported.logging),
    ("POST", "/v2/logging", unsupported.logging),
    ("GET", "/v2/systemsharedmemory/{rest:path}", unsupported.shared_memory),
    ("POST", "/v2/systemsharedmemory/{rest:path}", unsupported.shared_memory),
    ("GET", "/v2/cudasharedmemory/{rest:path}", unsupported.shared_memory),
    ("POST", "/v2/cudasharedmemory/{rest:path}", unsupported.shared_memory),
)
