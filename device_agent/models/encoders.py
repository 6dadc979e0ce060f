"""From a bundle to an encoder that may serve: a session, the tokenizer, the queue, and the golden set through them."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

from device_agent.models.engines import label
from device_agent.models.loaded import LoadedEncoder
from edgeonnx.errors import GoldenSetError, ServingError, ValidationError

if TYPE_CHECKING:
    from device_agent.inference.queue.batcher import Batcher
    from device_agent.inference.rows import Array, Ids
    from device_agent.inference.text import TextPath
    from device_agent.models.steps import Load
    from edgeonnx.bundle import Bundle
    from edgeonnx.spec.manifest import Variant


def open_encoder(load: Load) -> LoadedEncoder:
    """Open an encoder and prove it.

    Raises:
        EdgeOnnxError: As `loading.load_model` says. No thread is left.
    """
    from device_agent.inference.engine import Engine
    from device_agent.inference.queue.batcher import Batcher
    from device_agent.inference.rows import per_token_outputs
    from device_agent.inference.text import open_text_path
    from device_agent.models.tuning import tuned

    bundle, steps = load.bundle, load.steps
    engine, plan = tuned(bundle, load.config, load.cache, lambda threads: load.open(threads).engine(Engine))
    steps.done("session")
    text = open_text_path(bundle.tokenizer_json(), bundle.manifest.processing, engine.inputs)
    make_batcher = partial(
        Batcher,
        engine,
        load.config.queue,
        runners=plan.runners,
        name=bundle.manifest.name,
        per_token=per_token_outputs(bundle.manifest.entry_component.signature),
    )
    batcher = load.usual.run(make_batcher)
    try:
        steps.done("tokenizer")
        prove(bundle, engine.variant, text, batcher)
        steps.done("golden")
        return LoadedEncoder(
            bundle=bundle,
            engine=engine,
            text=text,
            batcher=batcher,
            verifier=load.verifier,
            plan=plan,
            loaded_at=time.time(),
            memory=load.growth(),
            seconds=steps.seconds,
            on_close=load.compiled.close,
        )
    except BaseException:
        batcher.close(timeout=5.0)
        raise


def prove(bundle: Bundle, variant: Variant, text: TextPath, batcher: Batcher) -> None:
    """Replay the golden set: the texts through the device's text path, the inputs through the runtime.

    The inputs take the way that requests take, batching included, so that what is proven is what will serve: rows of
    similar length padded together, and then each row alone.

    Raises:
        GoldenSetError: The ids differ, a threshold of the variant is not kept, or the runtime fails.
    """
    where = label(bundle, variant)
    golden = bundle.golden()
    try:
        golden.check_tokens(text.batch(golden.texts, golden.pairs), where=where)
        golden.check_replay(golden.replay(partial(_run_as_served, text, batcher)), variant.golden, where=where)
    except (ServingError, ValidationError) as error:
        raise GoldenSetError("the golden set cannot be replayed here", where=where, found=str(error)) from None


def _run_as_served(text: TextPath, batcher: Batcher, inputs: dict[str, Ids]) -> dict[str, Array]:
    from device_agent.inference.rows import TensorRows

    return batcher.run_now(TensorRows(inputs, text.padding, cut=True)).outputs
