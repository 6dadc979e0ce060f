from collections.abc import Sequence
from typing import Any

from numpy import int64
from numpy.typing import NDArray

from edgeonnx_ext.layout import Padding

class Tokenized:
    rows: int
    width: int
    @property
    def lengths(self) -> NDArray[int64]: ...
    @property
    def sources(self) -> NDArray[int64]: ...
    def order_by_length(self) -> NDArray[int64]: ...
    def write_into(
        self,
        input_ids: NDArray[Any],
        attention_mask: NDArray[Any] | None = None,
        token_type_ids: NDArray[Any] | None = None,
        *,
        special_tokens_mask: NDArray[Any] | None = None,
        offsets: NDArray[Any] | None = None,
        padding: Padding = ...,
        rows: NDArray[int64] | Sequence[int] | None = None,
    ) -> None: ...
