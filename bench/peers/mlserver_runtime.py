"""The int8 graph as a custom runtime of MLServer; `settings.json` and `model-settings.json` are made by the bench."""

from __future__ import annotations

import asyncio
from pathlib import Path

from encoder import Encoder
from mlserver import MLModel
from mlserver.codecs import NumpyCodec, StringCodec
from mlserver.types import InferenceRequest, InferenceResponse


class Embeddings(MLModel):
    """One BYTES input of texts, one FP32 output of embeddings."""

    async def load(self) -> bool:
        """Open the model."""
        extra = self.settings.parameters.extra
        self._encoder = Encoder(Path(extra["folder"]), int(extra["threads"]))
        # As many runs at a time as there are cores: more would only share them.
        self._slots = asyncio.Semaphore(int(extra["runs"]))
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        """A batch of requests, merged by MLServer; the run is in a thread, so that the loop goes on."""
        texts = StringCodec.decode_input(payload.inputs[0])
        async with self._slots:
            rows = await asyncio.to_thread(self._encoder.encode, texts)
        return InferenceResponse(model_name=self.name, outputs=[NumpyCodec.encode_output("embedding", rows)])
