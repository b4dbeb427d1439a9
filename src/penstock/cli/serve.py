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
from penstock.cli.exit_codes import Exit, Failure, cannot_listen
from penstock.cli.help import examples
from penstock.cli.logs import talk
from penstock.cli.options import targeted
from penstock.cli.output import Printer
from penstock.cli.target import Target
from penstock.errors import PenstockError
from penstock.worker.queue_stream import QueueStream

log = logging.getLogger("penstock.http")

_KEPT_ALIVE: Final = 30  #: seconds that a quiet connection is kept
_CONNECTIONS: Final = 1_000  #: at once; more are told to come back
_GRACE: Final = 10  #: seconds that requests get when it stops
_BIGGEST_HEAD: Final = 32 * 1024  #: bytes of a request's line and headers
#: errors of a machine whose hosts file names an address of IPv6, which it has not
_NO_IPV6: Final = frozenset({errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT})


@click.command(
    epilog=examples(
        "penstock serve shop.tasks:app",
        "penstock serve --namespace shop --url redis://db:6379     # look and steer, without the code",
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
@targeted
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
    talk("INFO", printer.form)
    http, uvicorn = _extra("penstock.http.credentials"), _extra("uvicorn")
    trust = http.parse_trust(trust_header or "", proxies)
    access = http.access(http.parse_tokens(tokens), http.parse_users(users), trust)
    if access.is_open and not _is_loopback(host):
        raise Failure(
            f"--host {host}: others could ask, so set $PENSTOCK_HTTP_TOKENS, --token, --user or --trust-header",
            Exit.USAGE,
        )
    program = _program(target, path)
    service = _extra("penstock.http.route_table").make_service(program, access)
    config = uvicorn.Config(
        service,
        http=_extra("penstock.http.header_timeout").HeaderTimeoutProtocol,
        ws="none",
        root_path=root_path,
        log_config=None,
        access_log=verbose,
        server_header=False,
        proxy_headers=False,  # who connected decides, not what a header says
        timeout_keep_alive=_KEPT_ALIVE,
        timeout_graceful_shutdown=_GRACE,
        limit_concurrency=_CONNECTIONS,
        h11_max_incomplete_event_size=_BIGGEST_HEAD,
    )
    logging.getLogger("uvicorn.error").setLevel("INFO" if verbose else "WARNING")
    _Server(uvicorn.Server(config), program, access.is_open).run(_listen(host, port))


def _listen(host: str, port: int) -> list[socket.socket]:
    """On every address of this host; uvicorn would only log the number of an error, and exit with a code of its own."""
    found: list[socket.socket] = []
    try:
        infos = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, address in sorted({(info[0], info[4]) for info in infos}):
            found.append(socket.create_server(address, family=family))
    except OSError as error:
        if not found or error.errno not in _NO_IPV6:
            raise cannot_listen(host, port, error, "--port") from None
    return found


class _Server:
    """Uvicorn, and a line about where it listens once it does, and one if what it serves cannot be reached."""

    def __init__(self, server: Any, program: Program, alone: bool) -> None:  # noqa: FBT001  (one caller)
        self._server = server
        self._startup = server.startup
        server.startup = self._started
        self._program = program
        self._alone = alone
        self._looking: asyncio.Task[None] | None = None

    def run(self, sockets: list[socket.socket]) -> None:
        signal.signal(signal.SIGTERM, lambda *_: None)  # uvicorn raises again what stopped it, and that is no failure
        self._server.run(sockets)
        if not self._server.started:
            raise click.exceptions.Exit(Exit.FAILED)

    async def _started(self, sockets: Any = None) -> None:
        await self._startup(sockets)
        for server in self._server.servers:
            for one in server.sockets:
                host, port = one.getsockname()[:2]
                shown = f"[{host}]" if ":" in host else host
                who = "this machine only, no credentials are set" if self._alone else "with credentials"
                log.info("Penstock %s serves http://%s:%d (%s)", version("penstock"), shown, port, who)
        self._looking = asyncio.create_task(self._look())  # while requests are answered already

    async def _look(self) -> None:
        """Whether the server can be used; if not, people should not have to find out by asking."""
        try:
            await self._program.client().views.now()
        except PenstockError as error:
            log.warning("%s Requests are answered with 503 until it can be used; /readyz tells.", error)


def _program(target: Target, path: str | None) -> Program:
    """The app's, or an empty one for a namespace without its code."""
    chosen = Target(path or target.app, target.url, target.namespace)
    client, app = chosen.open()
    if app is not None:
        app.program.name = app.name
        return app.program
    return Program(target.namespace or "", chosen.settings(), lambda: client, QueueStream)


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def _extra(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name not in {"starlette", "uvicorn"}:
            raise
        raise Failure("penstock serve needs more packages: pip install 'penstock[http]'", Exit.USAGE) from None
