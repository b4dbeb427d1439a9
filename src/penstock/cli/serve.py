"""`penstock serve`: the HTTP service."""

import asyncio
import errno
import importlib
import logging
import os
import re
import secrets
import signal
import socket
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from ipaddress import ip_address
from typing import Any, Final
from urllib.parse import quote

import click

from penstock.api.program import Program
from penstock.cli.exit_codes import CliError, Exit, cannot_listen
from penstock.cli.help import examples
from penstock.cli.logs import configure_logging
from penstock.cli.options import with_target
from penstock.cli.output import Printer
from penstock.cli.target import Target
from penstock.cli.terminal import echo
from penstock.errors import PenstockError
from penstock.worker.queue_stream import QueueStream

log = logging.getLogger("penstock.http")

_TOKEN_BYTES: Final = 24  #: of the token in the link
_STOP_TIMEOUT: Final = 10  #: seconds that running requests get at a stop
_MAX_HEADER_BYTES: Final = 32 * 1024  #: of a request's line and headers
#: Errors on a machine without IPv6 whose hosts file has an IPv6 address.
_NO_IPV6: Final = frozenset({errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT})


@click.command(
    epilog=examples(
        "penstock serve shop.tasks:app                             # prints a link with a token",
        "penstock serve --namespace shop --url redis://db:6379     # look and steer, without the code",
        "PENSTOCK_HTTP_TOKENS=admin:$SECRET penstock serve shop.tasks:app --host 0.0.0.0",
        "penstock serve shop.tasks:app --host 0.0.0.0 --token-file /etc/penstock/tokens.toml",
    )
)
@click.argument("path", metavar="[MODULE:ATTR]", required=False)
@click.option("--host", default="127.0.0.1", show_default=True, help="Where to listen; others need credentials.")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="0: any that is free.")
@click.option("--token", "tokens", multiple=True, metavar="[ROLE:]TOKEN", help="Who has it may ask.")
@click.option("--user", "users", multiple=True, metavar="NAME:PASSWORD:ROLE", help="The same by name and password.")
@click.option("--token-file", type=click.Path(), metavar="FILE", help="A file of tokens: see penstock token new.")
@click.option("--trust-header", metavar="NAME[:ROLE]", help="A header in which a proxy names the user.")
@click.option("--proxy", "proxies", multiple=True, metavar="ADDRESS", help="Address or network of that proxy.")
@click.option(
    "--allowed-host",
    "allowed_hosts",
    multiple=True,
    metavar="NAME",
    help="A host name that this proxy sends on, beside localhost and addresses.",
)
@click.option("--open", "is_open", is_flag=True, help="Ask for no credentials; everybody on this machine is an admin.")
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
    token_file: str | None,
    trust_header: str | None,
    proxies: tuple[str, ...],
    allowed_hosts: tuple[str, ...],
    root_path: str,
    *,
    is_open: bool,
    verbose: bool,
) -> None:
    """Answer HTTP requests until told to stop.

    Roles are viewer, enqueuer, operator and admin. Credentials are better given by --token-file, or by
    $PENSTOCK_HTTP_TOKENS, $PENSTOCK_HTTP_USERS and $PENSTOCK_HTTP_TRUST, than here, where everybody on the machine can
    read them. Without any it listens on this machine only, and prints a link with a token that is made at random, or is
    $PENSTOCK_TOKEN.
    """
    configure_logging("INFO", printer.format)
    credentials, uvicorn = _import_extra("penstock.http.credentials"), _import_extra("uvicorn")
    trust = credentials.parse_trust(
        trust_header or "",
        proxies or credentials.list_from(credentials.PROXIES),
        allowed_hosts or credentials.list_from(credentials.ALLOWED_HOSTS),
    )
    access = _import_extra("penstock.http.access").access_by(
        tokens=credentials.parse_tokens(tokens),
        users=credentials.parse_users(users),
        trust=trust,
        token_file=token_file,
        proxies=proxies,
    )
    access = _without_credentials(access, host, is_open=is_open)
    program = _program(target, path)
    service = _import_extra("penstock.http.route_table").make_service(program, access)
    connections = _import_extra("penstock.http.connections")
    room = connections.room_of_process()
    config = uvicorn.Config(
        service,
        http=partial(connections.ServiceProtocol, connections=connections.Connections(room)),
        ws="none",
        root_path=root_path,
        log_config=None,
        access_log=verbose,
        server_header=False,
        proxy_headers=False,  # the peer's address counts, not a header
        timeout_graceful_shutdown=_STOP_TIMEOUT,
        h11_max_incomplete_event_size=_MAX_HEADER_BYTES,
    )
    # It warns of each request that is no HTTP, so that anybody could fill a disk.
    logging.getLogger("uvicorn.error").setLevel("INFO" if verbose else "ERROR")
    logging.getLogger("uvicorn.access").addFilter(_hide_token)
    _Server(uvicorn.Server(config), program, access, printer).run(_listen(host, port))


def _without_credentials(access: Any, host: str, *, is_open: bool) -> Any:
    """The same access; if no credentials were given, by a link, or by nothing with --open, on this machine only."""
    if access.this_machine is None:
        if is_open:
            raise CliError("--open asks for no credentials, but some are set: leave out one of the two", Exit.USAGE)
        return access
    if not _is_loopback(host):
        raise CliError(
            f"--host {host}: others could ask, so set $PENSTOCK_HTTP_TOKENS, --token-file, --user or --trust-header",
            Exit.USAGE,
        )
    if is_open:
        return replace(access, this_machine=_import_extra("penstock.http.this_machine").OPEN)
    token = os.environ.get("PENSTOCK_TOKEN") or secrets.token_urlsafe(_TOKEN_BYTES)
    return _import_extra("penstock.http.access").access_by_link(token)


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

    def __init__(self, server: Any, program: Program, access: Any, printer: Printer) -> None:
        self._server = server
        self._startup = server.startup
        server.startup = self._started
        self._program = program
        self._access = access
        self._printer = printer
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
        is_open, token = self._access.this_machine is not None, self._access.link_token
        how = "to this machine only" if is_open or token else "with credentials"
        urls = [_url(listener.getsockname()) for server in self._server.servers for listener in server.sockets]
        for url in urls:
            log.info("Penstock %s serves %s (%s)", version("penstock"), url, how)
        if token:
            self._tell_link(urls[0], token)
        if is_open:
            self._warn_of_open()
        self._check = asyncio.create_task(self._check_server())  # requests are answered meanwhile

    def _tell_link(self, url: str, token: str) -> None:
        """Print the link, and how programs give the token; it is not in any other line."""
        link = f"{url}/?token={quote(token, safe='')}"
        if self._printer.is_json:
            log.info("no credentials are set, so a token is asked for: open %s", link)
            return
        echo(f"\n  open  {link}", err=True, bold=True)
        echo(f"  curl  -H 'Authorization: Bearer {token}' {url}/api/v1/queues\n", err=True)

    def _warn_of_open(self) -> None:
        text = (
            "--open: no credentials are asked for. Everybody with an account on this machine, and whoever a proxy or a"
            " tunnel lets in from elsewhere, may read, change and delete everything."
        )
        if self._printer.is_json:
            log.warning("%s", text)
        else:
            echo(f"\n  {text}\n", red=True, err=True)

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


def _hide_token(record: logging.LogRecord) -> bool:
    """Leave the token of the link out of the line for its request."""
    if isinstance(record.args, tuple):
        hidden = (re.sub(r"\btoken=[^&]*", "token=***", arg) if isinstance(arg, str) else arg for arg in record.args)
        record.args = tuple(hidden)
    return True


def _url(address: tuple[Any, ...]) -> str:
    host, port = address[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


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
