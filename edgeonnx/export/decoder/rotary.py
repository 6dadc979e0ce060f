"""The rotary positions of a source model, as tables, and a configuration in which they need no scaling."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class RotaryTables:
    """Cosines and sines by place; float32 (places, head size / 2)."""

    cosine: NDArray[np.float32]
    sine: NDArray[np.float32]


def rotary_tables(model: Any, places: int) -> RotaryTables:
    """The tables that a transformers model computes for its first places, whatever scales them.

    Args:
        model: The model, in float32. Its scaling must not depend on the length of the sequence.
        places: The context.
    """
    width = model.get_input_embeddings().weight.shape[1]
    with torch.inference_mode():
        cosine, sine = model.model.rotary_emb(torch.zeros(1, 1, width), torch.arange(places)[None])
    half = cosine.shape[-1] // 2  # transformers repeats them for the second half of each head
    first, second = (np.ascontiguousarray(table[0, :, :half].numpy()) for table in (cosine, sine))
    return RotaryTables(cosine=first, sine=second)


def plain_config(config: Any, places: int) -> Any:
    """The configuration for the builder: unscaled positions, no window, tables of the context's length."""
    plain = copy.deepcopy(config)
    plain.rope_parameters = {"rope_type": "default", "rope_theta": config.rope_parameters["rope_theta"]}
    plain.max_position_embeddings = places
    plain.sliding_window = None
    return plain
