"""`genai_config.json`: what ORT GenAI wants beside a graph, so that it opens a variant of a bundle as it is.

Nobody who packages a model is bound to our runtime: `onnxruntime_genai.Model("<bundle>/decoder/cpu-int8")` runs the
same graph on the same shared tensors. ORT GenAI takes the folder of tensors relative to this file. It only wants to
know a family, as the names and shapes of the contract are those of its own decoders; those it does not know are told
to it as `llama`, which has no special case in its loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgeonnx.spec.generation import INPUT_IDS, LOGITS, MASK
from edgeonnx.spec.manifest import EXTERNAL_FOLDER_OPTION
from edgeonnx.spec.paths import asset_directory, split_asset_reference

if TYPE_CHECKING:
    from edgeonnx.spec.generation import Generation

GENAI_FILE = "genai_config.json"
GENAI_TYPE = "llama"
UP = "../.."
"""From the folder of a variant to the bundle's own."""


def genai_config(
    generation: Generation, *, vocabulary: int, pad_id: int, model_file: str, tensors: str, provider: str
) -> dict[str, object]:
    """The content of a variant's `genai_config.json`.

    Args:
        generation: How text is generated.
        vocabulary: Number of logits.
        pad_id: Id of the padding token.
        model_file: The graph's file name.
        tensors: Asset reference of the folder with its tensors.
        provider: Execution provider in ONNX Runtime's spelling.
    """
    cache = generation.cache
    folder = f"{UP}/{asset_directory(split_asset_reference(tensors, where=GENAI_FILE)[0])}"
    name = provider.removesuffix("ExecutionProvider").lower()
    decoder: dict[str, object] = {
        "session_options": {
            "provider_options": [] if name == "cpu" else [{name: {}}],
            EXTERNAL_FOLDER_OPTION: folder,
        },
        "filename": model_file,
        "head_size": cache.head_size,
        "num_hidden_layers": cache.layers,
        "num_key_value_heads": cache.heads,
        "inputs": {
            "input_ids": INPUT_IDS,
            "attention_mask": MASK,
            "past_key_names": "past_key_values.%d.key",
            "past_value_names": "past_key_values.%d.value",
        },
        "outputs": {
            "logits": LOGITS,
            "present_key_names": "present.%d.key",
            "present_value_names": "present.%d.value",
        },
    }
    return {
        "model": {
            "type": GENAI_TYPE,
            "context_length": generation.context_length,
            "vocab_size": vocabulary,
            "pad_token_id": pad_id,
            "eos_token_id": list(generation.stop_ids) or [pad_id],
            "decoder": decoder,
        },
        "search": {
            "do_sample": generation.sampling.temperature > 0,
            "max_length": generation.context_length,
            "past_present_share_buffer": True,
            "repetition_penalty": generation.sampling.repetition_penalty,
            "temperature": generation.sampling.temperature or 1.0,
            "top_k": generation.sampling.top_k,
            "top_p": generation.sampling.top_p,
        },
    }
