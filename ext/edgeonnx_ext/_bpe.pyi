from edgeonnx_ext._rows import Tokenizer
from edgeonnx_ext.bpe import BpeModel

class BpeTokenizer(Tokenizer):
    def __init__(self, model: BpeModel) -> None: ...
