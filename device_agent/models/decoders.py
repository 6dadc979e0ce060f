"""From a bundle to a decoder that may serve: session, caches, tokenizer, generator, and the golden set through them.

A decoder is run by one thread, and each token waits for the one before, so all cores work on one run: nothing is
measured here, as it is for encoders.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from functools import partial
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

import numpy as np

from device_agent.config import usable_cpus
from device_agent.models import memory
from device_agent.models.caches import CacheNeeds
from device_agent.models.engines import label
from device_agent.models.loaded import LoadedDecoder
from device_agent.models.memory import Room
from device_agent.models.pages import let_go
from edgeonnx.errors import GoldenSetError, ManifestError, ServingError, ValidationError
from edgeonnx.spec.generation import INPUT_IDS, MASK

if TYPE_CHECKING:
    from collections.abc import Sequence

    from device_agent.inference.devices.contract import DecoderGraph
    from device_agent.inference.engine import DecoderEngine
    from device_agent.inference.generation.generator import Generator
    from device_agent.inference.generation.text import GenerationText
    from device_agent.inference.rows import Ids
    from device_agent.inference.session import Session
    from device_agent.models.caches import CacheBudget
    from device_agent.models.engines import RunGolden
    from device_agent.models.steps import Load
    from edgeonnx.bundle import Bundle
    from edgeonnx.spec.generation import Generation
    from edgeonnx.spec.manifest import Variant

logger = logging.getLogger("edgeonnx.agent")

_open_texts: WeakValueDictionary[tuple[object, ...], GenerationText] = WeakValueDictionary()
_opening = threading.Lock()

WIDEST = 4
"""Bytes of an element of the caches, until the graph says that it takes fewer."""


def open_decoder(load: Load) -> LoadedDecoder:
    """Open a decoder and prove it.

    Raises:
        EdgeOnnxError: As `loading.load_model` says. No thread is left.
    """
    from device_agent.inference.engine import DecoderEngine
    from device_agent.inference.queue.plan import RunPlan

    bundle, steps = load.bundle, load.steps
    generation = generation_of(bundle)
    threads = load.config.runtime.threads or usable_cpus()
    reason = "one token after the other" if load.config.runtime.threads is None else "set by the operator"
    needs = _needs(generation, WIDEST, load)
    best = load.open(threads, answers=partial(answers_of, generation), beside_weights=needs.least)
    engine = best.engine(DecoderEngine)
    graph = _graph(generation, engine.session, label(bundle, engine.variant))
    caches = _caches(load, generation, engine.variant, graph)
    steps.done("session")
    text = _open_text(bundle, generation, graph)
    generator = load.usual.run(partial(_generator, load, engine, generation, text, caches))
    try:
        steps.done("tokenizer")
        prove(bundle, engine.variant, text, generator)
        let_go(bundle.tensors_path(engine.variant))
        memory.give_back()  # what parsing a tokenizer of 50,000 entries left
        steps.done("golden")
        return LoadedDecoder(
            bundle=bundle,
            engine=engine,
            text=text,
            generator=generator,
            caches=caches,
            verifier=load.verifier,
            plan=RunPlan(runners=1, threads=threads, reason=reason),
            loaded_at=time.time(),
            memory=load.growth(),
            seconds=steps.seconds,
            on_close=load.compiled.close,
        )
    except BaseException:
        generator.close(5.0)
        raise


def generation_of(bundle: Bundle) -> Generation:
    """How text is generated with a bundle.

    Raises:
        ManifestError: It does not say.
    """
    found = bundle.manifest.generation
    if found is None:
        raise ManifestError("the manifest does not say how text is generated", where=bundle.manifest.name)
    return found


def _needs(generation: Generation, itemsize: int, load: Load) -> CacheNeeds:
    from device_agent.inference.generation.cache import PLACES_STEP

    return CacheNeeds(generation=generation, itemsize=itemsize, step=PLACES_STEP, config=load.config.generation)


def _graph(generation: Generation, session: Session, where: str) -> DecoderGraph:
    from device_agent.inference.devices.contract import check_decoder

    return check_decoder(generation, session.described_inputs, session.described_outputs, where=where)


def _caches(load: Load, generation: Generation, variant: Variant, graph: DecoderGraph) -> CacheBudget:
    """The caches' share of what the weights leave."""
    free = load.room.free
    left = None if free is None else max(0, free - memory.needed_bytes(load.bundle, variant))
    needs = _needs(generation, np.dtype(graph.cache_type).itemsize, load)
    name = label(load.bundle, variant)
    caches = needs.budget(Room(free=left, reason=load.room.reason), name)
    if caches.reason:
        logger.warning(
            "%s: sequences of at most %d tokens, fewer than it was made for: %s",
            name,
            caches.context_length,
            caches.reason,
        )
    return caches


def _generator(
    load: Load, engine: DecoderEngine, generation: Generation, text: GenerationText, caches: CacheBudget
) -> Generator:
    from device_agent.inference.generation.generator import Generator
    from device_agent.inference.generation.state import GeneratorLimits

    config = load.config.generation
    limits = GeneratorLimits(
        context=caches.context_length,
        cache_bytes=caches.limit,
        max_sequences=config.max_sequences,
        max_waiting=config.max_waiting,
        prompt_chunk=config.prompt_chunk,
        prefix_reuse=config.prefix_reuse,
    )
    return Generator(engine.session, generation, text, limits, replace=engine.replace, name=load.bundle.manifest.name)


def _open_text(bundle: Bundle, generation: Generation, graph: DecoderGraph) -> GenerationText:
    """The tokenizer and the chat template; those of a model that is loaded already, where they are the same.

    Two versions of a model mostly have one tokenizer, and to open it is Python's work of most of a second for 50,000
    tokens, which requests to the version that serves would feel.

    Raises:
        ManifestError: One is broken, or gives tokens that the graph does not have.
    """
    from device_agent.inference.generation.chat import ChatTemplate
    from device_agent.inference.generation.text import GenerationText

    processing, names = bundle.manifest.processing, generation.special_tokens
    tokenizer, source = bundle.tokenizer_json(), bundle.chat_template()
    key = (hashlib.sha256(tokenizer).digest(), processing.backend, source, tuple(sorted(names.items())))
    with _opening:
        text = _open_texts.get(key)
        if text is None:
            text = GenerationText(tokenizer, processing)
            if source is not None:
                text.chat = ChatTemplate(source, names=names, special=text.special_ids)
            _open_texts[key] = text
    highest = max((text.vocabulary_size - 1, *generation.stop_ids))
    if highest >= graph.vocabulary:
        raise ManifestError(
            "the tokenizer, or a stop token, has ids that the graph does not have",
            where=bundle.manifest.processing.tokenizer,
            expected=f"ids below {graph.vocabulary:,}",
            found=str(highest),
        )
    return text


def prove(bundle: Bundle, variant: Variant, text: GenerationText, generator: Generator) -> None:
    """Replay the golden set: the texts through the device's text path, the inputs through the generator's own runs.

    Raises:
        GoldenSetError: The ids differ, a threshold of the variant is not kept, or the runtime fails.
    """
    where = label(bundle, variant)
    golden = bundle.golden()
    try:
        rows = [text.encode(each, special_tokens=True) for each in golden.texts]
        golden.check_tokens(padded(rows, bundle.manifest.processing.pad_id), where=where)
        golden.check_replay(golden.replay(generator.replay), variant.golden, where=where)
    except (ServingError, ValidationError) as error:
        raise GoldenSetError("the golden set cannot be replayed here", where=where, found=str(error)) from None


def padded(rows: Sequence[Sequence[int]], pad_id: int) -> dict[str, Ids]:
    """Rows of tokens as a golden set has them: int64 (rows, longest), filled up on the right."""
    lengths = np.array([len(row) for row in rows])
    ids = np.full((len(rows), int(lengths.max())), pad_id, dtype=np.int64)
    for row, tokens in enumerate(rows):
        ids[row, : len(tokens)] = tokens
    return {INPUT_IDS: ids, MASK: (np.arange(ids.shape[1]) < lengths[:, None]).astype(np.int64)}


def answers_of(generation: Generation, session: Session) -> RunGolden:
    """How a session answers golden inputs: by the runs that a generator makes, in caches that are dropped again."""
    from device_agent.inference.generation.decoder import Decoder
    from edgeonnx.bundle.continuation import replay_function

    decoder = Decoder(session, generation.cache)
    return replay_function(decoder.extend, decoder.step)
