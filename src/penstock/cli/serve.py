"""`penstock serve`: the HTTP service."""

import asyncio
import errno
import importlib
import logging
import signal
import socket
from importlib.metadata import version
from ipaddress import ip_address
from typing import Any, Final

import click

from penstock.api.program import Program
from penstock.cli.exit_codes import CliError, Exit, cannot_listen
from penstock.cli.help import examples
from penstock.cli.logs import configure_logging
from penstock.cli.options import with_target
from penstock.cli.output import Printer
from penstock.cli.target import Target
from penstock.errors import PenstockError
from penstock.worker.queue_stream import QueueStream

log = logging.getLogger("penstock.http")

_KEEP_ALIVE_TIMEOUT: Final = 30  #: seconds that an idle connection is kept
_MAX_CONNECTIONS: Final = 1_000  #: at once; more are answered with 503
_STOP_TIMEOUT: Final = 10  #: seconds that running requests get at a stop
_MAX_HEADER_BYTES: Final = 32 * 1024  #: of a request's line and headers
#: Errors on a machine without IPv6 whose hosts file has an IPv6 address.
_NO_IPV6: Final = frozenset({errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT})


@click.command(
    epilog=examples(
        "penstock serve shop.tasks:app",
        "penstock serve --namespace shop --url redis://db:6379     # look and run_on_matching, without the code",
        "PENSTOCK_HTTP_TOKENS=admin:$SECRET penstock serve shop.tasks:app --host 0.0.0.0",
    )
)
@click.argument("path", metavar="[MODULE:ATTR]", required=False)
@click.option("--host", default="127.0.0.1", show_default=True, help="Where to listen; others need credentials.")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="0: any that is free.")
@click.option("--token", "tokens", multiple=True, metavar="[ROLE:]TOKEN", help="Who has it may ask.")
@click.option("--user", "users", multiple=True, metavar="NAME:PASSWORD:ROLE", help="The same by name and password.")
@click.option("--trust-header", metavar="NAME[:ROLE]", help="A header in which a proxy names the user.")
@click.option("--proxy", "proxies", multiple=True, metavar="NETWORK", help="Where that proxy is.  [default: here]")
@click.option("--root-path", default="", metavar="PATH", help="The path under which a proxy shows it.")
@click.option("-v", "--verbose", is_flag=True, help="A line for every request.")
@with_target
def serve(
    target: Target,
    printer: Printer,
    path: str | None,
    host: str,
    port: int,
    tokens: tuple[str, ...],
    users: tuple[str, ...],
    trust_header: str | None,
    proxies: tuple[str, ...],
    root_path: str,
    *,
    verbose: bool,
) -> None:
    """Answer HTTP requests until told to stop.

    Roles are viewer, operator and admin. Credentials are better given by $PENSTOCK_HTTP_TOKENS, $PENSTOCK_HTTP_USERS
    and $PENSTOCK_HTTP_TRUST than here, where everybody on the machine can read them. Without any it listens on this
    machine only.
    """
    configure_logging("INFO", printer.format)
    credentials, uvicorn = _import_extra("penstock.http.credentials"), _import_extra("uvicorn")
    trust = credentials.parse_trust(trust_header or "", proxies)
    access = credentials.access(credentials.parse_tokens(tokens), credentials.parse_users(users), trust)
    if access.is_open and not _is_loopback(host):
        raise CliError(
            f"--host {host}: others could ask, so set $PENSTOCK_HTTP_TOKENS, --token, --user or --trust-header",
            Exit.USAGE,
        )
    program = _program(target, path)
    service = _import_extra("penstock.http.route_table").make_service(program, access)
    config = uvicorn.Config(
        service,
        http=_import_extra("penstock.http.header_timeout").HeaderTimeoutProtocol,
        ws="none",
        root_path=root_path,
        log_config=None,
        access_log=verbose,
        server_header=False,
        proxy_headers=False,  # the peer's address counts, not a header
        timeout_keep_alive=_KEEP_ALIVE_TIMEOUT,
        timeout_graceful_shutdown=_STOP_TIMEOUT,
        limit_concurrency=_MAX_CONNECTIONS,
        h11_max_incomplete_event_size=_MAX_HEADER_BYTES,
    )
    logging.getLogger("uvicorn.error").setLevel("INFO" if verbose else "WARNING")
    _Server(uvicorn.Server(config), program, access.is_open).run(_listen(host, port))


def _listen(host: str, port: int) -> list[socket.socket]:
    """Listen on every address of this host; uvicorn would log an error number only, and use an exit code of its own."""
    sockets: list[socket.socket] = []
    try:
        infos = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, address in sorted({(info[0], info[4]) for info in infos}):
            sockets.append(socket.create_server(address, family=family))
    except OSError as error:
        if not sockets or error.errno not in _NO_IPV6:
            raise cannot_listen(host, port, error, "--port") from None
    return sockets


class _Server:
    """Uvicorn, with a log line once it listens, and a warning if Penstock's server cannot be used."""

    def __init__(self, server: Any, program: Program, is_open: bool) -> None:  # noqa: FBT001  (one caller)
        self._server = server
        self._startup = server.startup
        server.startup = self._started
        self._program = program
        self._is_open = is_open
        self._check: asyncio.Task[None] | None = None

    def run(self, sockets: list[socket.socket]) -> None:
        signal.signal(
            signal.SIGTERM, lambda *_: None
        )  # uvicorn raises the signal again after it has stopped; that is no failure
        self._server.run(sockets)
        if not self._server.started:
            raise click.exceptions.Exit(Exit.FAILED)

    async def _started(self, sockets: Any = None) -> None:
        await self._startup(sockets)
        for server in self._server.servers:
            for listener in server.sockets:
                host, port = listener.getsockname()[:2]
                host = f"[{host}]" if ":" in host else host
                access = "this machine only, no credentials are set" if self._is_open else "with credentials"
                log.info("Penstock %s serves http://%s:%d (%s)", version("penstock"), host, port, access)
        self._check = asyncio.create_task(self._check_server())  # requests are answered meanwhile

    async def _check_server(self) -> None:
        """Warn at once if the server cannot be used, rather than at the first request."""
        try:
            await self._program.client().views.now()
        except PenstockError as error:
            log.warning("%s Requests are answered with 503 until it can be used; /readyz tells.", error)


def _program(target: Target, path: str | None) -> Program:
    """The app's program, or an empty one for a namespace without its code."""
    target = Target(path or target.app, target.url, target.namespace)
    client, app = target.open()
    if app is not None:
        app.program.name = app.name
        return app.program
    return Program(target.namespace or "", target.settings(), lambda: client, QueueStream)


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def _import_extra(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name not in {"starlette", "uvicorn"}:
            raise
        raise CliError("penstock serve needs more packages: pip install 'penstock[http]'", Exit.USAGE) from None
