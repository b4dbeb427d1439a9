"""The target of a command: an app with its code, or a namespace on a server without it."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import TypeVar

from penstock.app import Penstock
from penstock.cli.find_app import find_app
from penstock.cli.terminal import echo
from penstock.client.client import Client
from penstock.model.settings import Settings, load
from penstock.server.embedded.server import used_lately
from penstock.server.urls import parse

T = TypeVar("T")

_NOTE_INTERVAL = 600.0  #: seconds before a note says again that the server is embedded
_NAMESPACE_HINT = "; without the code give --namespace, and --url or $PENSTOCK_URL"  #: for commands that need no task
_SEARCH_TIMEOUT = 1.0  #: seconds to look for a server that refuses connections; a person can try again


@dataclass(frozen=True, slots=True)
class Target:
    """What --app, --url and --namespace say."""

    app: str | None = None
    url: str | None = field(default=None, repr=False)  #: it may have a password
    namespace: str | None = None

    def open_app(self, hint: str = "") -> Penstock:
        """Import the app, and print a note if its data is on the embedded server.

        `hint` ends the error if no app is named.
        """
        app = self.import_app(hint)
        app.search = _SEARCH_TIMEOUT
        note_embedded_server(app.settings.url)
        return app

    def import_app(self, hint: str = "") -> Penstock:
        """Import the app; --url and --namespace win over its own."""
        app = find_app(self.app, hint)
        app.name = self.namespace or app.name
        app.settings = replace(app.settings, url=self.url or app.settings.url)
        return app

    def open(self) -> tuple[Client, Penstock | None]:
        """A client of the server, and the app; None if only a namespace is named."""
        if self.app or not self.namespace:
            app = self.open_app(_NAMESPACE_HINT)
            return app.client, app
        settings = self.settings()
        note_embedded_server(settings.url)
        return Client(self.namespace, settings.url, settings.deadline / 1000, search=_SEARCH_TIMEOUT), None

    def settings(self) -> Settings:
        """The settings of a namespace without its code."""
        return load({"url": self.url})

    def open_client(self) -> Client:
        return self.open()[0]

    def run(self, work: Callable[[Client], Awaitable[T]]) -> T:
        """Run `work` with a client of the server, on an event loop of its own."""
        return run(self.open_client(), work)


def note_embedded_server(url: str | None, *, always: bool = False) -> None:
    """Print a note that the server is the embedded one, for workers may be on another; not at every command."""
    parsed = parse(url)
    if parsed.kind == "embedded" and (always or not used_lately(parsed.path, _NOTE_INTERVAL)):
        echo(f"on the embedded server in {parsed.path}", err=True)


def run(client: Client, work: Callable[[Client], Awaitable[T]]) -> T:
    """Run `work` on an event loop of its own, and close the connections that it opened."""

    async def run_and_close() -> T:
        try:
            return await work(client)
        finally:
            await client.aclose()

    return asyncio.run(run_and_close())
