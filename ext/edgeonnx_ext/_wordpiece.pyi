from edgeonnx_ext._rows import Tokenizer
from edgeonnx_ext.wordpiece import WordPieceModel

class WordPieceTokenizer(Tokenizer):
    def __init__(self, model: WordPieceModel) -> None: ...
