from collections.abc import Sequence

from edgeonnx_ext._tokenized import Tokenized
from edgeonnx_ext.layout import Truncation

class Tokenizer:
    def tokenize(
        self,
        texts: Sequence[str],
        pairs: Sequence[str] | None = None,
        *,
        truncation: Truncation | None = None,
        special_tokens: bool = True,
        offsets: bool = False,
        threads: int = 1,
    ) -> Tokenized: ...
