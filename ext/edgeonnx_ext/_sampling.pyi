from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edgeonnx_ext.sampling import SamplingParameters

def sample_into(
    logits: NDArray[np.float32],
    uniforms: NDArray[np.float64],
    parameters: SamplingParameters | Sequence[SamplingParameters],
    ids: NDArray[np.int64],
    history: Sequence[NDArray[np.int64]] | None = None,
    logprobs: NDArray[np.float32] | None = None,
) -> None: ...
def probabilities_into(
    logits: NDArray[np.float32],
    parameters: SamplingParameters | Sequence[SamplingParameters],
    probabilities: NDArray[np.float32],
    history: Sequence[NDArray[np.int64]] | None = None,
) -> None: ...
