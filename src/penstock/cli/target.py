"""What a command is about: an app with its code, or a namespace on a server without it."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import TypeVar

import click

from penstock.app import Penstock
from penstock.cli.find_app import find_app
from penstock.client.client import Client
from penstock.model.settings import Settings, load
from penstock.server.embedded.server import used_lately
from penstock.server.urls import parse

T = TypeVar("T")

_WHILE = 600.0  #: seconds for which nobody has to be told again that the server is embedded
_WITHOUT = "; without the code give --namespace, and --url or $PENSTOCK_URL"  #: for what needs no task
_SEARCH = 1.0  #: seconds that a server which refuses connections is looked for; whoever sits here can try again


@dataclass(frozen=True, slots=True)
class Target:
    """As said on the command line."""

    app: str | None = None
    url: str | None = None
    namespace: str | None = None

    def open_app(self, instead: str = "") -> Penstock:
        """The app, imported, and a word about where its data is."""
        app = self.import_app(instead)
        app.search = _SEARCH
        mention(app.settings.url)
        return app

    def import_app(self, instead: str = "") -> Penstock:
        """The app, imported; a URL and a namespace of the command line win over its own."""
        app = find_app(self.app, instead)
        app.name = self.namespace or app.name
        app.settings = replace(app.settings, url=self.url or app.settings.url)
        return app

    def open(self) -> tuple[Client, Penstock | None]:
        """The way to the server, and the app; if a namespace is named, without its code."""
        if self.app or not self.namespace:
            app = self.open_app(_WITHOUT)
            return app.client, app
        settings = self.settings()
        mention(settings.url)
        return Client(self.namespace, settings.url, settings.deadline / 1000, search=_SEARCH), None

    def settings(self) -> Settings:
        """Those of a namespace without its code."""
        return load({"url": self.url})

    def open_hub(self) -> Client:
        return self.open()[0]


def mention(url: str | None, *, always: bool = False) -> None:
    """Say so when there is no server but the embedded one: your workers may be elsewhere. Not again and again."""
    parsed = parse(url)
    if parsed.kind == "embedded" and (always or not used_lately(parsed.path, _WHILE)):
        click.echo(f"on the embedded server in {parsed.path}", err=True)


def run(client: Client, work: Callable[[Client], Awaitable[T]]) -> T:
    """Ask on an event loop, and close what that opened."""

    async def once() -> T:
        try:
            return await work(client)
        finally:
            await client.aclose()

    return asyncio.run(once())
