"""Every limit and setting of the agent, in one place.

A limit is a number that an operator may have to change for their box or their model; each says what it protects.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field

MIB = 1 << 20


def usable_cpus() -> int:
    """CPU cores that this process may run on (its affinity mask, which containers set too)."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True, kw_only=True)
class AgentConfig:
    """The agent's settings. All sizes are upper bounds; what exceeds one is refused with status 413.

    Attributes:
        host: Address to listen on. Loopback: there is no authentication.
        port: TCP port; 0 takes a free one, which the ready line names.
        threads: Threads that one `InferenceSession.run` uses (`intra_op_num_threads`).
        variant: The only variant to consider, where the operator decided; None lets the selection decide.
        max_body_bytes: Size of a request's body. It bounds the memory that parsing takes (about ten times as much).
        max_texts: Texts, or rows of tensors, in one request. 2,048 is what OpenAI's API allows.
        max_text_characters: Length of one text. Longer texts than the model reads are cut, but only after they were
            tokenized as a whole, so this bounds the time that a text takes.
        max_json_numbers: Numbers in the tensors (or token lists) of one request.
        max_answer_numbers: Numbers in one answer (rows x tokens x dimension for outputs per token). It bounds the
            memory of the answer: 4 bytes each as an array, about 12 as JSON.
        batch_tokens: Longest row x rows of one call of the runtime; a larger request is cut into several. A small
            batch stays in the CPU's cache: 512 was the fastest for MiniLM.
        encode_rows: Texts that are tokenized at a time, so that the token ids of a large request never lie in memory
            all at once.
        drain_seconds: How long the agent waits for requests in flight after SIGTERM or SIGINT.
        keep_alive_seconds: How long an idle connection stays open. Longer than the 60 s after which common proxies
            and load balancers drop theirs, so that it is never the agent that closes a connection under a request.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    threads: int = field(default_factory=usable_cpus)
    variant: str | None = None
    max_body_bytes: int = 8 * MIB
    max_texts: int = 2048
    max_text_characters: int = MIB
    max_json_numbers: int = MIB
    max_answer_numbers: int = 4 * MIB
    batch_tokens: int = 512
    encode_rows: int = 256
    drain_seconds: float = 20.0
    keep_alive_seconds: int = 75
