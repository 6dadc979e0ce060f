"""The OpenAPI document of the agent, made by FastAPI when it is first asked for."""
