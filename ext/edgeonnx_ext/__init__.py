"""The compiled package of edgeonnx: text to padded id buffers and back, images, pooling, scores, sampling.

It depends on numpy alone; the `tokenizers` library is imported only for a tokenizer that this package does not know.
Each kernel has a plain twin in `edgeonnx_ext.reference` with the same results and errors. `HAS_NATIVE` tells whether
all compiled kernels are in use; if not, `NATIVE_PROBLEM` says why. EDGEONNX_EXT_PURE=1 forces the twins.

Build host and device run this same code, so the tokenizer on the device is the one that was proven on the host.
"""

from __future__ import annotations

from edgeonnx_ext._kernels import (
    HAS_NATIVE,
    NATIVE_PROBLEM,
    BpeTokenizer,
    Decoder,
    DecodeStream,
    WordPieceTokenizer,
    argmax_into,
    base64_rows,
    first_token_into,
    json_rows,
    l2_normalize_into,
    last_token_into,
    log_softmax_into,
    masked_max_into,
    masked_mean_into,
    masked_mean_sqrt_into,
    masked_weighted_mean_into,
    preprocess_batch_into,
    preprocess_into,
    probabilities_into,
    sample_into,
    sigmoid_into,
    softmax_into,
    top_k_into,
)
from edgeonnx_ext.bpe import BpeModel
from edgeonnx_ext.decoding import DecoderModel
from edgeonnx_ext.errors import TokenizerDataError, UnknownTokenizerError
from edgeonnx_ext.images import ImagePreprocessing
from edgeonnx_ext.labels import LabelScore, label_scores
from edgeonnx_ext.layout import Padding, Truncation
from edgeonnx_ext.sampling import SamplingParameters
from edgeonnx_ext.sections import AddedToken
from edgeonnx_ext.spans import Aggregation, Entity, aggregate, wordpiece_subwords
from edgeonnx_ext.templates import TemplatePiece
from edgeonnx_ext.text import EncodedRows, TextBatch, TextEncoder, Tokenized, open_text_encoder
from edgeonnx_ext.wordpiece import WordPieceModel

__all__ = [
    "HAS_NATIVE",
    "NATIVE_PROBLEM",
    "AddedToken",
    "Aggregation",
    "BpeModel",
    "BpeTokenizer",
    "DecodeStream",
    "Decoder",
    "DecoderModel",
    "EncodedRows",
    "Entity",
    "ImagePreprocessing",
    "LabelScore",
    "Padding",
    "SamplingParameters",
    "TemplatePiece",
    "TextBatch",
    "TextEncoder",
    "Tokenized",
    "TokenizerDataError",
    "Truncation",
    "UnknownTokenizerError",
    "WordPieceModel",
    "WordPieceTokenizer",
    "aggregate",
    "argmax_into",
    "base64_rows",
    "first_token_into",
    "json_rows",
    "l2_normalize_into",
    "label_scores",
    "last_token_into",
    "log_softmax_into",
    "masked_max_into",
    "masked_mean_into",
    "masked_mean_sqrt_into",
    "masked_weighted_mean_into",
    "open_text_encoder",
    "preprocess_batch_into",
    "preprocess_into",
    "probabilities_into",
    "sample_into",
    "sigmoid_into",
    "softmax_into",
    "top_k_into",
    "wordpiece_subwords",
]
