"""The errors of this package.

    ValueError
    ├── UnknownTokenizerError   a tokenizer.json that is fine, but uses a feature that we do not know
    └── TokenizerDataError      a tokenizer.json that is broken

Buffers and texts that do not fit raise plain ValueError and TypeError, as NumPy does.
"""

from __future__ import annotations


class UnknownTokenizerError(ValueError):
    """The tokenizer uses a feature that this package does not know exactly; the `tokenizers` library must do it.

    Attributes:
        reason: The feature and its place in the document, such as "normalizer type 'Replace' at normalizer".
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class TokenizerDataError(ValueError):
    """The tokenizer's document is broken: not JSON, a field of the wrong type, a vocabulary that contradicts itself."""
