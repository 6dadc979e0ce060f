from __future__ import annotations

from device_agent.config import AgentConfig, usable_cpus


def test_the_defaults_are_for_a_box_without_authentication() -> None:
    config = AgentConfig()
    assert config.server.host == "127.0.0.1"
    assert config.security.token_file is None
    assert not config.security.allow_anonymous
    assert usable_cpus() >= 1


def test_a_megabyte_of_text_fits_into_a_body() -> None:
    limits = AgentConfig().limits
    assert limits.max_text_characters < limits.max_body_bytes
