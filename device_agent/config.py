"""Every limit and setting of the agent, in one place; `device_agent.settings` reads them from `agent.toml`.

A limit is a number that an operator may have to change for their box or their model; each says what it protects. The
classes are the tables of the file and their attributes its keys.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path  # noqa: TC003 - `device_agent.settings` reads the types at run time
from typing import Annotated

KIB = 1 << 10
MIB = 1 << 20


@dataclass(frozen=True)
class Range:
    """Bounds of a setting, inclusive; a number without them is above 0. `device_agent.settings` checks both."""

    least: float
    most: float = float("inf")


@dataclass(frozen=True)
class OneOf:
    """The words that a setting may be."""

    words: tuple[str, ...]


Port = Annotated[int, Range(0, 65535)]
Threads = Annotated[int, Range(1, 1024)]


def usable_cpus() -> int:
    """CPU cores that this process may run on (its affinity mask, which containers set too)."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """`[server]`: where the agent listens, and how long it waits.

    Attributes:
        host: Address to listen on. Any but a loopback address needs `security.token_file`, or
            `security.allow_anonymous`.
        port: TCP port; 0 takes a free one, which the ready line names.
        grpc_port: TCP port of the gRPC service; None: no gRPC; 0 takes a free one.
        tls_certificate: PEM file with the certificate chain; None: plain HTTP.
        tls_key: PEM file with the private key.
        header_seconds: How long a request's head may take to arrive, from the first byte or the connection's start.
        body_seconds: How long a request's body may take to arrive.
        keep_alive_seconds: How long an idle connection stays open. Longer than the 60 s after which common proxies
            and load balancers drop theirs, so that it is never the agent that closes a connection under a request.
        drain_seconds: How long the agent waits for requests in flight after SIGTERM or SIGINT.
        max_connections: Open connections; further ones are closed at once.
    """

    host: str = "127.0.0.1"
    port: Port = 8080
    grpc_port: Port | None = None
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    header_seconds: float = 10.0
    body_seconds: float = 30.0
    keep_alive_seconds: int = 75
    drain_seconds: Annotated[float, Range(0)] = 20.0
    max_connections: int = 1024


@dataclass(frozen=True, kw_only=True)
class Limits:
    """`[limits]`: upper bounds of one request; what exceeds one is refused with status 413 (the head: 431).

    Attributes:
        max_header_bytes: Size of a request's line and headers.
        max_body_bytes: Size of a request's body, also after decompression. It bounds the memory that parsing takes
            (about ten times as much).
        max_texts: Texts, or rows of tensors, in one request. 2,048 is what OpenAI's API allows.
        max_text_characters: Length of one text. Longer texts than the model reads are cut, but only after they were
            tokenized as a whole, so this bounds the time that a text takes.
        max_json_numbers: Numbers in the tensors (or token lists) of one request.
        max_answer_numbers: Numbers in one answer (rows x tokens x dimension for outputs per token). It bounds the
            memory of the answer: 4 bytes each as an array, about 12 as JSON.
    """

    max_header_bytes: int = 32 * KIB
    max_body_bytes: int = 8 * MIB
    max_texts: int = 2048
    max_text_characters: int = MIB
    max_json_numbers: int = MIB
    max_answer_numbers: int = 4 * MIB


@dataclass(frozen=True, kw_only=True)
class QueueConfig:
    """`[queue]`: how requests wait for a model.

    Attributes:
        batch_tokens: Longest row x rows of one call of the runtime. A small batch stays in the CPU's cache, and
            takes less memory: from 256 to 512 no difference in speed could be told for MiniLM int8, but 30 MB.
        max_tokens: Tokens that may wait for one model. It bounds memory; usually the deadline refuses first.
        deadline_seconds: How long a request may take, unless it says so itself. One that would take longer is refused
            at once with 429, one that did take longer is answered 504.
        max_deadline_seconds: The longest time that a request may ask for.
        inline_characters: Requests of up to this many characters are tokenized in the event loop (microseconds);
            larger ones in a thread, so that others do not wait.
    """

    batch_tokens: int = 320
    max_tokens: int = 256 * KIB
    deadline_seconds: float = 30.0
    max_deadline_seconds: float = 300.0
    inline_characters: Annotated[int, Range(0)] = 16 * KIB


@dataclass(frozen=True, kw_only=True)
class GenerationConfig:
    """`[generation]`: how models that generate text serve many requests at once.

    Attributes:
        max_sequences: Answers that are generated at one time by one model; further ones wait.
        max_context: Most tokens of one prompt and its answer together; None: as many as the model was made for. Less
            saves memory: each token of each sequence takes its place in the caches (46 kB for SmolLM2-135M).
        cache_bytes: Memory that the caches of one model may take; None: as much as `max_sequences` of `max_context`
            need, but at most half of what is left in the memory beside the weights.
        prompt_chunk: Tokens of a prompt that one run reads while others wait for their next token: a larger chunk reads
            long prompts sooner, and lets the answers of others stutter.
        max_waiting: Answers that may wait for a place; further ones are refused at once with 429.
        deadline_seconds: How long a request may take, from its head to its last token. One that is not done then ends
            with an error.
        prefix_reuse: The caches of answers that are done are kept until their memory is needed, so that a prompt that
            begins like an earlier one (a system prompt, a conversation that goes on) is read from where they differ.
    """

    max_sequences: Annotated[int, Range(1, 256)] = 8
    max_context: Annotated[int, Range(1, 1 << 24)] | None = None
    cache_bytes: int | None = None
    prompt_chunk: Annotated[int, Range(16, 1 << 16)] = 64
    max_waiting: Annotated[int, Range(0, 1 << 16)] = 64
    deadline_seconds: float = 300.0
    prefix_reuse: bool = True


@dataclass(frozen=True, kw_only=True)
class RuntimeConfig:
    """`[runtime]`: what runs the models.

    Attributes:
        providers: Execution providers in order of preference, without the suffix `ExecutionProvider` ("TensorRT",
            "CUDA", "OpenVINO", "CPU"); empty: every one that the agent knows, the fastest first.
        policy: What happens if the preferred provider that a variant of the bundle needs cannot be used: "fallback"
            takes the next one; "refuse" does not serve.
        variant: The only variant to consider, where the operator decided; None lets the selection decide.
        runners: Threads that call the runtime; None: one for each GPU, on the CPU as measured at the first load with
            `cache_dir`, else one for each core. A model that generates text has one always.
        threads: Threads that one call uses (`intra_op_num_threads`); None: as measured with `runners`, else one; for a
            model that generates text one for each core, because a token must wait for the one before.
        spinning: Threads of the runtime keep their core busy while they wait for their next piece of work. On a machine
            that does nothing else a language model may give some more tokens a second with it; where anything else
            runs, each token may take twice as long.
        cache_dir: Where the work of a first load is kept (optimized graphs, TensorRT engines, measurements); None
            keeps nothing.
        gpu: Number of the GPU.
        gpu_memory_bytes: Most GPU memory that ONNX Runtime's arena takes; None: no limit.
        memory_bytes: Memory that all models together may take; None: what the machine has left at load.
    """

    providers: tuple[str, ...] = ()
    policy: Annotated[str, OneOf(("fallback", "refuse"))] = "fallback"
    variant: str | None = None
    runners: Threads | None = None
    threads: Threads | None = None
    spinning: bool = False
    cache_dir: Path | None = None
    gpu: Annotated[int, Range(0)] = 0
    gpu_memory_bytes: int | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class SecurityConfig:
    """`[security]`: who may ask what.

    Attributes:
        token_file: File with the bearer tokens for requests, one a line; None: anyone who reaches the port.
        admin_token_file: File with the bearer tokens for loading and unloading models; None: those operations are
            allowed from loopback listeners without `token_file`, and refused otherwise.
        allow_anonymous: Listen on an address that others reach without any token.
        open_metrics: Health and metrics need no token.
    """

    token_file: Path | None = None
    admin_token_file: Path | None = None
    allow_anonymous: bool = False
    open_metrics: bool = True


@dataclass(frozen=True, kw_only=True)
class UpdateConfig:
    """`[update]`: how releases from a repository are taken.

    Attributes:
        state_dir: Folder in which releases are installed (`edgeonnx-agent enroll` begins it); None: no updates.
        interval_seconds: How often the serving process looks for a release; 0: never, something else runs
            `edgeonnx-agent update`. Each wait is between half of it and one and a half, so that a fleet spreads.
        window: Time of day in which new releases are fetched and installed ("02:00-05:00"); None: at any time.
        window_zone: Time zone of the window ("Europe/Berlin"); None: that of this machine.
        metered: The link costs money: nothing but metadata is fetched.
        variants: "needed" fetches the variant that this device runs, and those that it falls back to; "all" fetches
            the whole bundle.
        disk_reserve_bytes: Space on the disk that an update leaves free.
        tries: How often a release is loaded before it counts as bad: as a candidate, and then while it is on probation
            (a start after a crash or a power cut is one).
        candidate_seconds: How long a release may take to load and to give its golden answers.
        candidate_memory_bytes: Memory that it may take meanwhile; None: what the machine has left.
        probation_seconds: How long a new version is watched before it counts as good; after a restart of the agent
            anew.
        probation_requests: Requests below which error rate and latency of a new version are not judged; of a version
            that fails hard, half as many faults among the last ones are enough.
        probation_errors: Largest share of its requests that may fail for reasons of the agent's own, beyond the share
            of the version before.
        probation_latency: Largest ratio of the median time of its requests, without the wait for a runner, to that of
            the version before; of a model that generates text, of the times to the first token and of each further one.
        report_url: Where each step is reported by HTTP POST; None: nowhere.
        connect_seconds: How long one connection to the repository may take to be made, with TLS.
        stall_seconds: How long the repository may be silent, and the time in which it must send `stall_bytes`.
        stall_bytes: The least that counts as progress: a link that is slower, or a server that only keeps the
            connection busy, counts as broken.
        metadata_seconds: How long one file of metadata may take, with all retries.
        download_seconds: How long one blob may take in one run, with all retries. What has arrived is kept.
        retries: Retries in a row without progress after which a download is given up until the next run.
        retry_after_seconds: The longest time that the agent waits where a busy repository asks it to (`Retry-After`);
            a longer one ends the run.
        connections: Connections to one host, and so the downloads at one time.
        bandwidth_bytes: Most bytes a second that all downloads together take; None: no limit.
        proxy: URL of an HTTP proxy; "none": none at all; None: as the environment says (`https_proxy`). Hosts in the
            environment's `no_proxy` are reached without.
        ca_file: PEM file with the authorities that may vouch for the repository's host; None: those of the system.
        client_certificate: PEM file with the certificate that the device shows to the repository's host; None: none.
        client_key: PEM file with its private key.
        token_file: File with the value of the header `Authorization` in one line; a single word is sent as a bearer
            token. It goes to the repository's own host alone, and only over TLS.
    """

    state_dir: Path | None = None
    interval_seconds: Annotated[float, Range(0)] = 3600.0
    window: str | None = None
    window_zone: str | None = None
    metered: bool = False
    variants: Annotated[str, OneOf(("needed", "all"))] = "needed"
    disk_reserve_bytes: Annotated[int, Range(0)] = 256 * MIB
    tries: Annotated[int, Range(1, 100)] = 3
    candidate_seconds: float = 900.0
    candidate_memory_bytes: int | None = None
    probation_seconds: Annotated[float, Range(0)] = 600.0
    probation_requests: int = 20
    probation_errors: Annotated[float, Range(0, 1)] = 0.05
    probation_latency: Annotated[float, Range(1)] = 3.0
    report_url: str | None = None
    connect_seconds: float = 10.0
    stall_seconds: float = 30.0
    stall_bytes: int = 4 * KIB
    metadata_seconds: float = 300.0
    download_seconds: float = 6 * 3600.0
    retries: Annotated[int, Range(0, 100)] = 5
    retry_after_seconds: Annotated[float, Range(0)] = 300.0
    connections: Annotated[int, Range(1, 16)] = 2
    bandwidth_bytes: int | None = None
    proxy: str | None = None
    ca_file: Path | None = None
    client_certificate: Path | None = None
    client_key: Path | None = None
    token_file: Path | None = None


@dataclass(frozen=True, kw_only=True)
class LogConfig:
    """`[log]`: what goes to stderr.

    Attributes:
        level: "debug", "info", "warning" or "error".
        format: "text" for people, "json" for machines: one object a line.
        requests: Write a line for each request.
    """

    level: Annotated[str, OneOf(("debug", "info", "warning", "error"))] = "info"
    format: Annotated[str, OneOf(("text", "json"))] = "text"
    requests: bool = False


@dataclass(frozen=True, kw_only=True)
class AgentConfig:
    """All settings.

    Attributes:
        bundles: Bundles that are loaded at start. The first is the one that requests without a model's name get.
        repository: Folder whose bundles can be loaded and unloaded by name while the agent serves; None: only
            `bundles` can.
        server: `[server]`.
        limits: `[limits]`.
        queue: `[queue]`.
        generation: `[generation]`.
        runtime: `[runtime]`.
        security: `[security]`.
        update: `[update]`.
        log: `[log]`.
    """

    bundles: tuple[Path, ...] = ()
    repository: Path | None = None
    server: ServerConfig = field(default_factory=ServerConfig)
    limits: Limits = field(default_factory=Limits)
    queue: QueueConfig = field(default_factory=QueueConfig)
    generation: GenerationConfig = field(default_factory=GenerationConfig)
    runtime: RuntimeConfig = field(default_factory=RuntimeConfig)
    security: SecurityConfig = field(default_factory=SecurityConfig)
    update: UpdateConfig = field(default_factory=UpdateConfig)
    log: LogConfig = field(default_factory=LogConfig)
