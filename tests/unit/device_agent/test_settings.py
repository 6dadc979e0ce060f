from __future__ import annotations

import dataclasses
from importlib.resources import files
from pathlib import Path

import pytest

from device_agent import settings
from device_agent.config import AgentConfig, LogConfig, QueueConfig, RuntimeConfig, SecurityConfig, ServerConfig
from device_agent.settings import Setting, all_settings, parse_size, read_settings, tables
from device_agent.settings_text import first_sentence, to_toml
from edgeonnx.errors import UsageError


def write(folder: Path, text: str) -> Path:
    path = folder / "agent.toml"
    path.write_text(text, encoding="utf-8")
    return path


def read(folder: Path, text: str, **overrides: object) -> AgentConfig:
    return read_settings(write(folder, text), overrides, {})


def refused(folder: Path, text: str) -> UsageError:
    with pytest.raises(UsageError) as caught:
        read(folder, text)
    return caught.value


def test_without_anything_the_defaults_hold() -> None:
    assert read_settings(environment={}) == AgentConfig()


def test_every_setting_of_every_table_is_read(tmp_path: Path) -> None:
    config = read(
        tmp_path,
        """
        bundles = ["a", "/b"]
        repository = "models"
        [server]
        host = "::1"
        port = 0
        grpc_port = 8081
        drain_seconds = 0
        header_seconds = 2.5
        [limits]
        max_body_bytes = "16 MiB"
        [queue]
        deadline_seconds = 3
        [runtime]
        providers = ["CUDA", "CPU"]
        policy = "refuse"
        memory_bytes = "1.5 GiB"
        threads = 2
        [security]
        open_metrics = false
        [log]
        level = "debug"
        """,
    )
    assert config.bundles == (tmp_path / "a", Path("/b"))
    assert config.repository == tmp_path / "models"
    assert config.server == ServerConfig(host="::1", port=0, grpc_port=8081, drain_seconds=0.0, header_seconds=2.5)
    assert isinstance(config.server.drain_seconds, float)
    assert config.limits.max_body_bytes == 16 << 20
    assert config.queue == QueueConfig(deadline_seconds=3.0)
    assert config.runtime == RuntimeConfig(providers=("CUDA", "CPU"), policy="refuse", memory_bytes=3 << 29, threads=2)
    assert config.security == SecurityConfig(open_metrics=False)
    assert config.log == LogConfig(level="debug")


def test_each_field_of_the_dataclasses_is_a_setting_with_an_explanation() -> None:
    fields = {field.name for field in dataclasses.fields(AgentConfig) if field.name not in tables()}
    fields |= {f"{table}.{field.name}" for table, kind in tables().items() for field in dataclasses.fields(kind)}
    assert set(all_settings()) == fields
    for setting in all_settings().values():
        assert setting.explanation.endswith("."), setting.key
        assert setting.expected


@pytest.mark.parametrize(
    ("text", "where", "expected", "found"),
    [
        ("[server]\nport = '8080'", "server.port", "a whole number from 0 up to 65535", "'8080'"),
        ("[server]\nport = 65536", "server.port", "up to 65535", "65536"),
        ("[server]\nport = -1", "server.port", "from 0", "-1"),
        ("[server]\nport = 80.0", "server.port", "a whole number", "80.0"),
        ("[server]\nport = true", "server.port", "a whole number", "True"),
        ("[server]\nhost = ''", "server.host", "a text", "''"),
        ('[server]\nhost = "a\\u0007b"', "server.host", "a text", "'a\\x07b'"),
        ("[server]\nhost = ['a']", "server.host", "a text", "['a']"),
        ("[server]\nheader_seconds = 0", "server.header_seconds", "above 0", "0"),
        ("[server]\nheader_seconds = nan", "server.header_seconds", "above 0", "nan"),
        ("[server]\nheader_seconds = inf", "server.header_seconds", "up to 604800", "inf"),
        ("[server]\nheader_seconds = 1" + "0" * 400, "server.header_seconds", "up to 604800", "1000"),
        ("[server]\ndrain_seconds = -0.1", "server.drain_seconds", "from 0", "-0.1"),
        ("[limits]\nmax_body_bytes = '8 MB/s'", "limits.max_body_bytes", '"1 MiB"', "'8 MB/s'"),
        ("[limits]\nmax_body_bytes = '0.3 B'", "limits.max_body_bytes", '"1 MiB"', "'0.3 B'"),
        ("[limits]\nmax_body_bytes = 0", "limits.max_body_bytes", "above 0", "0"),
        ("[limits]\nmax_texts = '8 MiB'", "limits.max_texts", "a whole number above 0", "'8 MiB'"),
        ("[runtime]\npolicy = 'maybe'", "runtime.policy", '"fallback", "refuse"', "'maybe'"),
        ("[runtime]\nproviders = 'CPU'", "runtime.providers", "a list, each item a text", "'CPU'"),
        ("[runtime]\nproviders = ['CPU', 3]", "runtime.providers", "a list", "['CPU', 3]"),
        ("[runtime]\nthreads = 0", "runtime.threads", "from 1 up to 1024", "0"),
        ("[security]\nopen_metrics = 1", "security.open_metrics", "true or false", "1"),
        ("[log]\nlevel = 'INFO'", "log.level", '"debug", "info", "warning", "error"', "'INFO'"),
        ("bundles = 'a'", "bundles", "a list, each item a path", "'a'"),
        ("bundles = [['a']]", "bundles", "a list", "[['a']]"),
        ("server = 3", "server", "a table [server]", "3"),
    ],
)
def test_a_wrong_value_names_file_key_expected_and_found(
    tmp_path: Path, text: str, where: str, expected: str, found: str
) -> None:
    error = refused(tmp_path, text)
    assert error.where == f"{tmp_path / 'agent.toml'}: {where}"
    assert expected in (error.expected or "")
    assert (error.found or "").startswith(found)
    assert error.exit_code == 2


@pytest.mark.parametrize(
    ("text", "where", "hint"),
    [
        ("[server]\nprot = 1", "[server] prot", "did you mean port?"),
        ("port = 1", "port", "port belongs into [server]"),
        ("[queue]\nbundles = []", "[queue] bundles", "bundles belongs above all tables"),
        ("[limits]\nbatch_tokens = 1", "[limits] batch_tokens", "batch_tokens belongs into [queue]"),
        ("[servers]\nport = 1", "servers", "did you mean server?"),
        ("[zzz]", "zzz", None),
        ('"\\u001b[31m" = 1', "\\x1b[31m", None),
    ],
)
def test_an_unknown_name_is_refused_with_what_was_probably_meant(
    tmp_path: Path, text: str, where: str, hint: str | None
) -> None:
    error = refused(tmp_path, text)
    assert error.message == "unknown setting"
    assert error.where == f"{tmp_path / 'agent.toml'}: {where}"
    assert error.hint == hint


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[server]\ntls_key = 'k'", "server.tls_key is set, but server.tls_certificate is not"),
        ("[update]\nclient_key = 'k'", "update.client_key is set, but update.client_certificate is not"),
        ("[server]\ntls_certificate = 'c'", "server.tls_certificate is set, but server.tls_key is not"),
        ("[server]\nport = 90\ngrpc_port = 90", "both 90"),
        ("[queue]\ndeadline_seconds = 301", "queue.deadline_seconds (301) is above"),
        ("[queue]\nbatch_tokens = 300000", "queue.batch_tokens (300000) is above"),
        ("[security]\nallow_anonymous = true\ntoken_file = 't'", "security.allow_anonymous is true"),
        ("[runtime]\nproviders = ['CPU', 'CUDA', 'CPU']", "names CPU twice"),
    ],
)
def test_settings_that_contradict_each_other(tmp_path: Path, text: str, problem: str) -> None:
    error = refused(tmp_path, text)
    assert error.message == "settings contradict each other"
    assert len(error.details) == 1
    assert problem in error.details[0]


def test_both_ports_may_be_free_ones(tmp_path: Path) -> None:
    assert read(tmp_path, "[server]\nport = 0\ngrpc_port = 0").server.grpc_port == 0


@pytest.mark.parametrize(
    "data", [b"port = ", b"\xff", b"a = 1\na = 2", b"a = " + b"[" * 5000], ids=["cut", "not utf-8", "twice", "nested"]
)
def test_what_is_not_toml(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "agent.toml"
    path.write_bytes(data)
    with pytest.raises(UsageError, match="not TOML"):
        read_settings(path, environment={})


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        read_settings(tmp_path / "agent.toml", environment={})
    with pytest.raises(UsageError, match="Is a directory"):
        read_settings(tmp_path, environment={})


def test_a_file_that_is_too_large(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="at most 1,048,576 bytes"):
        read(tmp_path, "#" * (settings.MAX_FILE_BYTES + 1))


def test_the_command_line_wins_over_the_file_and_that_over_the_environment(tmp_path: Path) -> None:
    (tmp_path / "edgeonnx.tokens").write_text("secret")
    environment = {"CACHE_DIRECTORY": "/var/cache/one:/var/cache/two", "CREDENTIALS_DIRECTORY": str(tmp_path)}
    config = read_settings(None, {}, environment)
    assert config.runtime.cache_dir == Path("/var/cache/one")
    assert config.security == SecurityConfig(token_file=tmp_path / "edgeonnx.tokens")
    path = write(tmp_path, "[runtime]\ncache_dir = 'c'\ngpu = 1\n[security]\ntoken_file = 't'")
    config = read_settings(path, {"runtime.gpu": 2, "runtime.threads": None}, environment)
    assert config.runtime == RuntimeConfig(cache_dir=tmp_path / "c", gpu=2)
    assert config.security.token_file == tmp_path / "t"


def test_paths_of_the_command_line_start_at_the_working_directory(tmp_path: Path) -> None:
    assert read(tmp_path, "", bundles=[Path("here")]).bundles == (Path("here"),)


def test_a_wrong_option_says_so(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"the command line: runtime.memory_bytes: wrong value; .*found 'much'"):
        read_settings(None, {"runtime.memory_bytes": "much"}, {})


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4096", 4096),
        ("1 B", 1),
        ("1 kB", 1000),
        ("1KiB", 1024),
        (" 512 MiB ", 512 << 20),
        ("0.5 KiB", 512),
        ("2 TiB", 2 << 40),
        ("1.5", None),
        ("-1", None),
        ("1 mib", None),
        ("1  MiB", None),
        ("", None),
        ("1e3", None),
        ("٣", None),
    ],
)
def test_sizes(text: str, size: int | None) -> None:
    assert parse_size(text) == size


def test_the_effective_settings_as_a_file_are_the_same_settings(tmp_path: Path) -> None:
    text = """
        bundles = ['a "quoted" \\ name', '/b']
        [server]
        grpc_port = 0
        [limits]
        max_body_bytes = 1000
        [runtime]
        memory_bytes = "3 GiB"
        providers = ["CPU"]
        [security]
        open_metrics = false
    """
    config = read(tmp_path, text)
    printed = to_toml(config)
    assert 'memory_bytes = "3 GiB"' in printed.splitlines()
    assert "max_body_bytes = 1000" in printed.splitlines()
    assert "#port = 8080" in printed.splitlines()
    (tmp_path / "other").mkdir()
    assert read(tmp_path / "other", printed) == config


def test_the_shipped_example_is_what_the_agent_prints() -> None:
    """After a change of `device_agent.config`: `edgeonnx-agent config > device_agent/data/agent.toml`."""
    shipped = files("device_agent").joinpath("data", "agent.toml").read_text(encoding="utf-8")
    assert shipped == to_toml(AgentConfig())
    assert max(map(len, shipped.splitlines())) <= 100


def test_the_example_with_its_defaults_uncommented_gives_the_defaults(tmp_path: Path) -> None:
    lines = [
        line if line.startswith("# ") or "(not set)" in line else line.removeprefix("#")
        for line in to_toml(AgentConfig()).splitlines()
    ]
    assert any(line.startswith("port = ") for line in lines)
    assert read(tmp_path, "\n".join(lines)) == AgentConfig()


def test_first_sentences() -> None:
    assert first_sentence("One, e.g. 2.5 s; None: no. Two.") == "One, e.g. 2.5 s; not set: no."
    assert first_sentence("Texts in one request. 2,048 is usual.") == "Texts in one request."


def test_a_type_that_is_no_setting() -> None:
    with pytest.raises(TypeError, match="settings have no type"):
        settings._setting("x", dict[str, int], None, "")


def test_annotations_say_what_a_setting_may_be() -> None:
    port: Setting = all_settings()["server.grpc_port"]
    assert (port.kind, port.many, port.default) == (int, False, None)
    assert port.range is not None
    assert (port.range.least, port.most) == (0, 65535)
    assert all_settings()["log.format"].words == ("text", "json")
