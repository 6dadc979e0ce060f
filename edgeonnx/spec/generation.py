"""The contract of a decoder: which tensors its graph takes and gives, and how text is generated with it.

Every graph for text generation has these inputs and outputs, whichever exporter made it. They are those that ORT GenAI
expects, so that it opens the same graph:

- `input_ids`, int64 (batch, sequence): new tokens.
- `attention_mask`, int64 (batch, total): in each row as many ones, on the left, as tokens stand in the cache after
  this run; zeros follow where another row has more. The position of a token is its place in its row.
- `past_key_values.<layer>.key`, `.value`, float or float16 (batch, heads, places, head size): the caches before.
- `present.<layer>.key`, `.value`: the caches after. Bound to the same memory as the past, they are written in place.
- `logits`, float (batch, 1, vocabulary): for the token that follows the last of `input_ids`.

Three kinds of runs are defined; `total` is the longest row after the run:

1. Prompts: the caches are empty, and `total` is `sequence`. Shorter rows are padded on the right.
2. A continuation of one row (batch 1) by any number of tokens.
3. One token for each row (sequence 1); rows may have any lengths.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from edgeonnx.spec.paths import split_asset_reference

if TYPE_CHECKING:
    from edgeonnx.spec.parse import Node

INPUT_IDS = "input_ids"
MASK = "attention_mask"
LOGITS = "logits"
PARTS = ("key", "value")

MAX_LAYERS = 1 << 10
MAX_HEADS = 1 << 10
MAX_HEAD_SIZE = 1 << 12
MAX_CONTEXT = 1 << 24
MAX_STOP_IDS = 256


@dataclass(frozen=True, kw_only=True)
class CacheShape:
    """The key and value caches of a decoder.

    Attributes:
        layers: Number of layers; each has a key and a value cache.
        heads: Heads of keys and values in each layer.
        head_size: Elements of a head.
    """

    layers: int
    heads: int
    head_size: int

    @property
    def past_names(self) -> tuple[str, ...]:
        """Names of the inputs, layer by layer, key before value."""
        return tuple(f"past_key_values.{layer}.{part}" for layer in range(self.layers) for part in PARTS)

    @property
    def present_names(self) -> tuple[str, ...]:
        """Names of the outputs, in the same order."""
        return tuple(f"present.{layer}.{part}" for layer in range(self.layers) for part in PARTS)

    def bytes_per_token(self, itemsize: int) -> int:
        """Memory of one token of one sequence, in all layers.

        Args:
            itemsize: Bytes of an element: 4 for float, 2 for float16.
        """
        return self.layers * len(PARTS) * self.heads * self.head_size * itemsize

    @classmethod
    def from_dict(cls, node: Node) -> CacheShape:
        """Read the `cache` object."""
        node.only(("layers", "heads", "head_size"))
        return cls(
            layers=node.integer("layers", minimum=1, maximum=MAX_LAYERS),
            heads=node.integer("heads", minimum=1, maximum=MAX_HEADS),
            head_size=node.integer("head_size", minimum=1, maximum=MAX_HEAD_SIZE),
        )

    def to_dict(self) -> dict[str, object]:
        """The `cache` object."""
        return {"layers": self.layers, "heads": self.heads, "head_size": self.head_size}


@dataclass(frozen=True, kw_only=True)
class SamplingDefaults:
    """How the model's makers sample from it (`generation_config.json`), for requests that do not say.

    Attributes:
        temperature: 0 takes the most probable token.
        top_k: 0 keeps all tokens.
        top_p: 1 keeps all tokens.
        repetition_penalty: 1 does nothing.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    repetition_penalty: float = 1.0

    @classmethod
    def from_dict(cls, node: Node) -> SamplingDefaults:
        """Read the `sampling` object."""
        node.only(("temperature", "top_k", "top_p", "repetition_penalty"))
        found = cls(
            temperature=node.required("temperature").typed(float),
            top_k=node.integer("top_k"),
            top_p=node.required("top_p").typed(float),
            repetition_penalty=node.required("repetition_penalty").typed(float),
        )
        for name, value, good in (
            ("temperature", found.temperature, 0 <= found.temperature <= 100),
            ("top_p", found.top_p, 0 < found.top_p <= 1),
            ("repetition_penalty", found.repetition_penalty, 0 < found.repetition_penalty <= 100),
        ):
            if not good:
                node.required(name).fail(f"is out of range ({value})")
        return found

    def to_dict(self) -> dict[str, object]:
        """The `sampling` object."""
        return {
            "temperature": self.temperature,
            "top_k": self.top_k,
            "top_p": self.top_p,
            "repetition_penalty": self.repetition_penalty,
        }


@dataclass(frozen=True, kw_only=True)
class Generation:
    """How text is generated with a decoder; the member `generation` of a manifest.

    Attributes:
        cache: The caches.
        context_length: Most tokens of a sequence, prompt and answer together.
        stop_ids: Tokens that end an answer.
        chat_template: Asset reference of the Jinja template that makes a prompt of a conversation; None: the model
            has none, and takes no conversations.
        special_tokens: Texts that a template may name, by the names that it uses (`bos_token`, `eos_token`, ...).
        sampling: How to sample where a request does not say.
    """

    cache: CacheShape
    context_length: int
    stop_ids: tuple[int, ...]
    chat_template: str | None = None
    special_tokens: dict[str, str] = field(default_factory=dict)
    sampling: SamplingDefaults = field(default_factory=SamplingDefaults)

    @classmethod
    def from_dict(cls, node: Node) -> Generation:
        """Read the `generation` object."""
        node.only(("cache", "context_length", "stop_ids", "chat_template", "special_tokens", "sampling"))
        template = node.optional_text("chat_template")
        if template is not None:
            split_asset_reference(template, where=node.required("chat_template").where)
        stops = node.required("stop_ids")
        ids = tuple(item.typed(int) for item in stops.items())
        if len(ids) > MAX_STOP_IDS or any(not 0 <= token < 1 << 31 for token in ids) or len(set(ids)) != len(ids):
            stops.fail("is no list of token ids", expected=f"at most {MAX_STOP_IDS} different ids below 2**31")
        return cls(
            cache=CacheShape.from_dict(node.required("cache")),
            context_length=node.integer("context_length", minimum=1, maximum=MAX_CONTEXT),
            stop_ids=ids,
            chat_template=template,
            special_tokens={name: member.typed(str) for name, member in node.required("special_tokens").members()},
            sampling=SamplingDefaults.from_dict(node.required("sampling")),
        )

    def to_dict(self) -> dict[str, object]:
        """The `generation` object."""
        return {
            "cache": self.cache.to_dict(),
            "context_length": self.context_length,
            "stop_ids": list(self.stop_ids),
            "chat_template": self.chat_template,
            "special_tokens": dict(self.special_tokens),
            "sampling": self.sampling.to_dict(),
        }
