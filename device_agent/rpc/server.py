"""The life of the gRPC listener."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from device_agent.api.edge.auth import Asked, Rules, decide, is_loopback, load_tokens
from device_agent.api.edge.tls import ssl_context
from edgeonnx.errors import EdgeOnnxError, RuntimeUnavailableError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from device_agent.api.context import Context
    from device_agent.api.edge.auth import Tokens
    from device_agent.config import AgentConfig, ServerConfig
    from edgeonnx.errors import ServingError

logger = logging.getLogger("edgeonnx.agent")


class Certificates:
    """The certificate of the listener, read again when the operator says so.

    Args:
        settings: The same files as the HTTP listener's.

    Raises:
        UsageError: They cannot be used.
    """

    def __init__(self, settings: ServerConfig) -> None:
        self._settings = settings
        self._next: Any = None
        self.first = self._read()

    def reload(self) -> None:
        """Let later connections have what the files hold now.

        Raises:
            UsageError: They cannot be used; everything stays as it was.
        """
        self._next = self._read()

    def fetch(self) -> Any:
        """What changed since the last connection, or None; gRPC asks at each new one, in a thread of its own."""
        fresh, self._next = self._next, None
        return fresh

    def _read(self) -> Any:
        import grpc  # type: ignore[import-untyped]

        # Makes the same checks, with the same errors, as for HTTP.
        ssl_context(self._settings)
        key, certificate = self._settings.tls_key, self._settings.tls_certificate
        if key is None or certificate is None:
            raise AssertionError("ssl_context lets neither be missing alone")
        try:
            return grpc.ssl_server_certificate_configuration([(key.read_bytes(), certificate.read_bytes())])
        except OSError as error:
            raise UsageError("the file cannot be read", where="server.tls_key", found=str(error)) from None


class GrpcServer:
    """A listener that serves.

    Attributes:
        port: Its TCP port.
    """

    def __init__(self, server: Any, port: int, certificates: Certificates | None) -> None:
        self._server = server
        self._certificates = certificates
        self.port = port

    def reload(self) -> None:
        """Read the certificate again; if it cannot be used, the log says so and it stays as it was."""
        if self._certificates is None:
            return
        try:
            self._certificates.reload()
        except EdgeOnnxError as error:
            logger.error("the certificate of gRPC stays as it was: %s", error)  # noqa: TRY400 - no traceback for a file

    async def stop(self, grace: float | None = None) -> None:
        """Take no new call, wait up to `grace` seconds for those in flight, then cancel them."""
        await self._server.stop(grace)


async def serve_grpc(
    context: Context, config: AgentConfig, *, tokens: Callable[[], Tokens] | None = None
) -> GrpcServer:
    """Listen on `config.server.grpc_port`, with the same TLS files and tokens as the HTTP listener.

    Args:
        context: The agent behind the endpoints.
        config: The agent's settings; `grpc_port` is not None.
        tokens: Gives the tokens that hold now; None: those in the files now.

    Raises:
        RuntimeUnavailableError: grpcio or protobuf is missing.
        UsageError: The address cannot be listened on, or a file of tokens or of TLS cannot be used.
    """
    try:
        import grpc.aio  # type: ignore[import-untyped]

        from device_agent.rpc.service import Service
    except ImportError as error:
        raise RuntimeUnavailableError(
            f"gRPC needs a library that is missing or does not load: {error.name or error}",
            where="server.grpc_port",
            hint="pip install 'edgeonnx[grpc]'",
        ) from None
    if tokens is None:
        found = load_tokens(config.security)
        tokens = lambda: found  # noqa: E731 - a constant as a function
    server = grpc.aio.server(options=_options(config), maximum_concurrent_rpcs=config.server.max_connections)
    service = Service(context, _authorizer(config, tokens), config.server.host)
    server.add_generic_rpc_handlers((service.handler(),))
    settings = config.server
    encrypted = settings.tls_certificate is not None or settings.tls_key is not None
    certificates = Certificates(settings) if encrypted else None
    port = _listen(server, settings, certificates)
    await server.start()
    logger.info("gRPC listens on %s", _address(settings.host, port))
    return GrpcServer(server, port, certificates)


def _options(config: AgentConfig) -> list[tuple[str, int]]:
    limits = config.limits
    return [
        # It counts after decompression too.
        ("grpc.max_receive_message_length", limits.max_body_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_metadata_size", limits.max_header_bytes),
        ("grpc.absolute_max_metadata_size", limits.max_header_bytes),
        # Without this a second agent could listen on the same port, and take half of the calls.
        ("grpc.so_reuseport", 0),
        # An idle connection is closed as the HTTP listener's is; a client's ping does not count as use.
        ("grpc.max_connection_idle_ms", config.server.keep_alive_seconds * 1000),
    ]


def _authorizer(config: AgentConfig, tokens: Callable[[], Tokens]) -> Callable[[Asked], ServingError | None]:
    host = config.server.host
    rules = Rules(open_metrics=config.security.open_metrics, loopback=is_loopback(host), host=host)
    return lambda asked: decide(asked, tokens(), rules)


def _address(host: str, port: int | None) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _listen(server: Any, settings: ServerConfig, certificates: Certificates | None) -> int:
    """Bind; gives the port."""
    import grpc

    address = _address(settings.host, settings.grpc_port)
    try:
        if certificates is None:
            return int(server.add_insecure_port(address))
        credentials = grpc.dynamic_ssl_server_credentials(certificates.first, certificates.fetch)
        return int(server.add_secure_port(address, credentials))
    except RuntimeError as error:
        raise UsageError(
            "the address cannot be listened on",
            where=f"server.grpc_port, {address}",
            found=str(error)[:200],
            hint="give another server.grpc_port; 0 takes a free one",
        ) from None
