"""OpenAI's completions and chat completions, streamed or whole."""
