"""The shapes of requests and answers for the OpenAPI document; nothing validates with them at run time.

The handlers check by hand, so these classes repeat what those do: the contract test asks a real agent for answers of
every kind and holds them against the document. Annotations are evaluated here, so the limits of the running
configuration become part of the schema.
"""

# No `from __future__ import annotations`: pydantic needs the local names in the annotations.
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from device_agent.api.schema.generation import chat_request, completion_request
from device_agent.config import Limits

TOKEN_IDS = 2**31
"""Token ids are below this in every bundle; how many the model has says its metadata."""


class Strict(BaseModel):
    """A request: fields that nothing reads are refused."""

    model_config = ConfigDict(extra="forbid")


class Open(BaseModel):
    """An answer, or a request that may carry more."""

    model_config = ConfigDict(extra="allow", protected_namespaces=())


class OpenAIErrorDetail(Strict):
    """What is wrong."""

    message: str
    type: str
    param: str | None
    code: str | None


class OpenAIError(Strict):
    """An error as OpenAI answers it."""

    error: OpenAIErrorDetail


class TeiError(Strict):
    """An error as text-embeddings-inference answers it."""

    error: str
    error_type: Literal["Unhealthy", "Backend", "Overloaded", "Validation", "Tokenizer", "Empty"]


class InferenceProtocolError(Strict):
    """An error as the Open Inference Protocol answers it."""

    error: str


class Model(Strict):
    """A model, as OpenAI lists it."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class ModelList(Strict):
    """The models that serve."""

    object: Literal["list"]
    data: list[Model]


class Embedding(Strict):
    """One embedding; in base64: float32, little-endian."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class Usage(Strict):
    """Tokens as the model reads them: special tokens included, after cutting, without padding."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingsResponse(Strict):
    """The embeddings, in the order of the input."""

    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: Usage


class Rank(Strict):
    """One text: its place in the request, and its score."""

    index: int
    text: str | None = None
    score: float


class Prediction(Strict):
    """One label."""

    score: float
    label: str


class Info(Strict):
    """What serves, in the words of text-embeddings-inference."""

    model_config = ConfigDict(protected_namespaces=())

    model_id: str
    model_sha: str
    model_dtype: str
    served_model_name: str
    model_type: dict[str, Any]
    max_input_length: int
    max_batch_tokens: int
    max_client_batch_size: int
    auto_truncate: bool
    version: str


class Live(Open):
    """The process answers."""

    live: bool


class Ready(Open):
    """The agent serves every model that it was started with."""

    ready: bool


class ServerMetadata(Open):
    """Name, version and protocol extensions of the server."""

    name: str
    version: str
    extensions: list[str]


class TensorMetadata(Open):
    """A tensor that a model takes or gives; -1 is a dimension that the request decides."""

    name: str
    datatype: str
    shape: list[int]


class ModelMetadata(Open):
    """Inputs and outputs of a model, and in `parameters` what serves and why."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]


class ModelConfig(Open):
    """The configuration of a model, as far as it has one in Triton's sense."""

    name: str
    platform: str
    backend: str
    max_batch_size: int


class ModelReady(Open):
    """The model serves."""

    name: str
    ready: bool


class ResponseTensor(Open):
    """A tensor of an answer; one in binary form has no `data` but the parameter `binary_data_size`."""

    name: str
    datatype: str
    shape: list[int]
    data: list[Any] | None = None
    parameters: dict[str, Any] | None = None


class InferResponse(Open):
    """The outputs of the model."""

    model_name: str
    model_version: str
    id: str | None = None
    parameters: dict[str, Any] | None = None
    outputs: list[ResponseTensor]


class RepositoryEntry(Open):
    """A model of the repository, and where it stands."""

    name: str
    version: str | None = None
    state: str
    reason: str | None = None


class ModelStatistics(Open):
    """Counters of one model."""

    name: str
    version: str


class Statistics(Open):
    """Counters of the models since they were loaded, in Triton's form."""

    model_stats: list[ModelStatistics]


class Empty(Open):
    """An empty object."""


@dataclass(frozen=True, kw_only=True)
class RequestModels:
    """The classes of the requests; they differ with the limits."""

    chat: type[BaseModel]
    completion: type[BaseModel]
    embeddings: type[BaseModel]
    infer: type[BaseModel]
    rerank: type[BaseModel]
    classify: type[BaseModel]
    embed: type[BaseModel]
    similarity: type[BaseModel]
    repository_index: type[BaseModel]
    repository_model: type[BaseModel]


def request_models(limits: Limits) -> RequestModels:
    """The classes of the requests under the limits of an agent."""
    a_text = Annotated[str, Field(max_length=limits.max_text_characters)]
    token_id = Annotated[int, Field(ge=0, lt=TOKEN_IDS)]
    token_row = Annotated[list[token_id], Field(min_length=1, max_length=limits.max_json_numbers)]
    many_texts = Annotated[list[a_text], Field(min_length=1, max_length=limits.max_texts)]
    token_rows = Annotated[list[token_row], Field(min_length=1, max_length=limits.max_texts)]
    single = Annotated[list[a_text], Field(min_length=1, max_length=1)]
    pair = Annotated[list[a_text], Field(min_length=2, max_length=2)]
    leading = Annotated[int, Field(ge=1, description="keep the leading dimensions, normalized again")]
    flag = bool | None

    class Cutting(Strict):
        truncate: Annotated[flag, Field(description="cut what is longer than the model reads; false: refuse it")] = True
        truncation_direction: Annotated[
            Literal["left", "Left", "right", "Right"] | None,
            Field(description="where tokens are lost; null: as the model's tokenizer does"),
        ] = None

    class Routed(Cutting):
        model: Annotated[str | None, Field(description="null: the first model of the route's task")] = None

    class EmbeddingsRequest(Strict):
        model: str
        input: a_text | many_texts | token_row | token_rows
        encoding_format: Literal["float", "base64"] | None = "float"
        dimensions: leading | None = None
        user: str | None = None

    class RerankRequest(Routed):
        query: a_text
        texts: many_texts
        raw_scores: Annotated[flag, Field(description="logits instead of their sigmoid")] = False
        return_text: flag = False

    class ClassifyRequest(Routed):
        inputs: (
            a_text
            | single
            | pair
            | Annotated[list[single], Field(min_length=1, max_length=limits.max_texts)]
            | Annotated[list[pair], Field(min_length=1, max_length=limits.max_texts)]
        )
        raw_scores: Annotated[flag, Field(description="logits instead of scores")] = False

    class EmbedRequest(Routed):
        inputs: a_text | many_texts | token_row | token_rows
        normalize: flag = True
        dimensions: leading | None = None
        prompt_name: None = None

    class SimilarityInput(Strict):
        source_sentence: a_text
        sentences: many_texts

    class SimilarityParameters(Cutting):
        prompt_name: None = None

    class SimilarityRequest(Strict):
        inputs: SimilarityInput
        parameters: SimilarityParameters | None = None
        model: str | None = None

    class RequestTensor(Open):
        name: str
        datatype: str
        shape: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]
        data: list[Any] | None = None
        parameters: dict[str, Any] | None = None

    class RequestedOutput(Open):
        name: str
        parameters: dict[str, Any] | None = None

    class InferRequest(Open):
        id: str | None = None
        parameters: dict[str, Any] | None = None
        inputs: Annotated[list[RequestTensor], Field(min_length=1)]
        outputs: list[RequestedOutput] | None = None

    class RepositoryIndexRequest(Open):
        ready: Annotated[bool, Field(description="only models that serve")] = False

    class RepositoryModelRequest(Open):
        parameters: dict[str, Any] | None = None

    return RequestModels(
        chat=chat_request(limits),
        completion=completion_request(limits),
        embeddings=EmbeddingsRequest,
        infer=InferRequest,
        rerank=RerankRequest,
        classify=ClassifyRequest,
        embed=EmbedRequest,
        similarity=SimilarityRequest,
        repository_index=RepositoryIndexRequest,
        repository_model=RepositoryModelRequest,
    )
