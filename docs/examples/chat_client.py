"""Talk with an agent through OpenAI's own client, unmodified: `pip install openai`, and another base URL.

Start an agent (`edgeonnx-agent serve --bundle smollm2-1.0.0`), then run
`python chat_client.py http://127.0.0.1:8080 "What is the capital of France?"`.
"""

from __future__ import annotations

import sys

from openai import APIError, OpenAI


def main(address: str, question: str) -> None:
    """Ask one question; the answer is printed as it comes."""
    # An agent that wants a token (`security.token_file`) gets it as the API key.
    client = OpenAI(base_url=f"{address}/v1", api_key="none")
    model = client.models.list().data[0].id
    stream = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": question}],
        max_tokens=80,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    for chunk in stream:
        if chunk.choices and chunk.choices[0].delta.content:
            print(chunk.choices[0].delta.content, end="", flush=True)
        if chunk.usage is not None:
            print(f"\n{chunk.usage.prompt_tokens} tokens in, {chunk.usage.completion_tokens} out")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: chat_client.py URL QUESTION")
    try:
        main(sys.argv[1], sys.argv[2])
    except APIError as error:
        sys.exit(f"the agent refuses: {error.message}")
