from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edgeonnx_ext.wordpiece import WordPieceModel

class Tokenized:
    @property
    def rows(self) -> int: ...
    @property
    def width(self) -> int: ...
    @property
    def lengths(self) -> NDArray[np.int64]: ...
    def write_into(
        self,
        input_ids: NDArray[np.int64],
        attention_mask: NDArray[np.int64],
        token_type_ids: NDArray[np.int64],
    ) -> None: ...

class WordPieceTokenizer:
    def __init__(self, model: WordPieceModel, *, pad_id: int, pad_type_id: int = 0) -> None: ...
    def tokenize(self, texts: Sequence[str], pairs: Sequence[str] | None, max_length: int) -> Tokenized: ...
