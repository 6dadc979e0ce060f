"""Small responses in JSON."""

from __future__ import annotations

import orjson
from starlette.responses import Response


def json_response(value: object, status: int = 200) -> Response:
    """`value` as a response; NumPy values are written as numbers."""
    return Response(
        orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY), status_code=status, media_type="application/json"
    )
