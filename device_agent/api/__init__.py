"""The HTTP side of the agent: Open Inference Protocol v2, OpenAI's embeddings, health and metrics."""
