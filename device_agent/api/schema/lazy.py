"""The OpenAPI document on demand: made when it is first asked for, in a thread, and then kept.

Making it imports FastAPI and pydantic (0.4 s, and memory that a device may lack), which serving needs nothing of.
"""

from __future__ import annotations

import asyncio
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from device_agent.config import AgentConfig


@lru_cache(maxsize=1)
def _made(config: AgentConfig) -> bytes:
    from device_agent.api.schema.document import openapi_json

    return openapi_json(config)


async def openapi_document(config: AgentConfig) -> bytes:
    """The document, as JSON in UTF-8; others are served meanwhile."""
    return await asyncio.to_thread(_made, config)
