from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edgeonnx_ext.images import ImagePreprocessing

def preprocess_into(image: NDArray[np.uint8], out: NDArray[np.float32], preprocessing: ImagePreprocessing) -> None: ...
def preprocess_batch_into(
    images: Sequence[NDArray[np.uint8]], out: NDArray[np.float32], preprocessing: ImagePreprocessing
) -> None: ...
