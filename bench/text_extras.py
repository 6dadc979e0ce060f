"""What else the text path does: decoding, and images; measured for bench/text.py."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from bench.text_peers import library_of

BATCH = 1024
IMAGE = (480, 640, 3)


def best_of(tasks: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Seconds of the best run of each task, in turns."""
    best = dict.fromkeys(tasks, float("inf"))
    for _ in range(rounds):
        for name, task in tasks.items():
            begin = time.perf_counter()
            task()
            best[name] = min(best[name], time.perf_counter() - begin)
    return best


def decode_rows(name: str, data: bytes, texts: list[str], rounds: int) -> int:
    """Print decoding speed, whole and as a stream, against `tokenizers`; return how many texts came out otherwise."""
    from edgeonnx_ext._decode import Decoder, DecodeStream
    from edgeonnx_ext.decoding import DecoderModel

    library = library_of(data)
    decoder = Decoder(DecoderModel.from_tokenizer_json(data))
    batch = [encoding.ids for encoding in library.encode_batch_fast(texts)]
    arrays = [np.array(row, dtype=np.int64) for row in batch]
    expected = library.decode_batch(batch)
    stream = DecodeStream(decoder)

    def streamed(row: list[int]) -> str:
        return "".join([stream.push(token_id) for token_id in row]) + stream.finish()

    wrong = sum(found != wanted for found, wanted in zip(decoder.decode_batch(batch), expected, strict=True))
    wrong += sum(streamed(row) != wanted for row, wanted in zip(batch, expected, strict=True))
    tokens = sum(map(len, batch)) / 1e6
    tasks: dict[str, Callable[[], object]] = {
        "tokenizers": lambda: library.decode_batch(batch),
        "lists": lambda: decoder.decode_batch(batch),
        "int64 arrays": lambda: decoder.decode_batch(arrays),
        "stream": lambda: [streamed(row) for row in batch],
    }
    seconds = best_of(tasks, rounds)
    shown = ", ".join(
        f"{task} {tokens / value:.1f} ({seconds['tokenizers'] / value:.1f} x)" for task, value in seconds.items()
    )
    print(f"  {name}, million tokens a second: {shown}; {wrong} texts differ")
    return wrong


def image_rows(rounds: int) -> None:
    """Print how long one image of 640 x 480 takes to become 224 x 224, against transformers with PIL."""
    try:
        from edgeonnx_ext._images import preprocess_into
        from edgeonnx_ext.images import ImagePreprocessing
    except ImportError as error:
        print(f"  no image kernel: {error}")
        return
    preprocessing = ImagePreprocessing(
        size=(224, 224), resample=2, rescale_factor=1 / 255, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5)
    )
    image = np.random.default_rng(3).integers(0, 256, IMAGE, dtype=np.uint8)
    out = np.empty((3, 224, 224), dtype=np.float32)
    tasks: dict[str, Callable[[], object]] = {"edgeonnx": lambda: preprocess_into(image, out, preprocessing)}
    peer = _transformers_processor()
    if isinstance(peer, str):
        print(f"  {peer}")
    else:
        tasks["transformers"] = lambda: peer(images=image, return_tensors="np")
    seconds = best_of(tasks, 5 * rounds)
    for task, value in seconds.items():
        print(f"  640 x 480 to 224 x 224, {task:<14}{value * 1e3:>8.2f} ms{value / seconds['edgeonnx']:>8.1f} x")
    if not isinstance(peer, str):
        found = np.asarray(peer(images=image, return_tensors="np")["pixel_values"])[0]
        print(f"  largest difference: {np.abs(found - out).max():.1e}")


def _transformers_processor() -> Any:
    try:
        import transformers

        pil = getattr(transformers, "ViTImageProcessorPil", transformers.ViTImageProcessor)
        return pil(size={"height": 224, "width": 224})
    except Exception as error:  # noqa: BLE001 - it needs Pillow, and says so in several ways
        return f"transformers' processor does not open (pip install pillow): {str(error).strip().splitlines()[0]}"
