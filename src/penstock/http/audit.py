"""The audit log: a line for every change, and for what was refused, who asked, and where from. Never arguments."""

import logging
import time
from collections import OrderedDict
from typing import Any, Final

from starlette.requests import Request

from penstock.http.principal import Principal
from penstock.http.problems import Refused
from penstock.http.route import RequestContext, Route

log = logging.getLogger("penstock.audit")

MAX_REFUSALS: Final = 10  #: lines about refusals of one address in one WINDOW
MAX_ALL_REFUSALS: Final = 200  #: and of all addresses together
WINDOW: Final = 60.0  #: seconds
_MAX_ADDRESSES: Final = 10_000  #: whose refusals are counted
_MAX_NAME: Final = 300  #: characters of a path or name in a line
_DETAILS: Final = 20  #: jobs in one line; more of them take more lines


class AuditLog:
    """The audit log of one service. Refusals are bounded, so that nobody can fill a disk with them."""

    def __init__(self) -> None:
        self._refusals: OrderedDict[str, int] = OrderedDict()  #: address → how many in this window
        self._began = 0.0  #: when this window did
        self._written = 0

    @property
    def is_on(self) -> bool:
        """Whether anybody wants to know of changes."""
        return log.isEnabledFor(logging.INFO)

    def change(self, context: RequestContext, route: Route, status: int, address: str) -> None:
        """Tell of a change, or of one that failed."""
        target = printable(" ".join(context.path.values()))
        details = list(map(printable, context.details)) or [""]
        for at in range(0, len(details), _DETAILS):
            page = details[at : at + _DETAILS]
            text = " ".join(filter(None, (route.action, target, ", ".join(page))))
            fields = _fields(context.principal.name, route.action, target, status, address)
            log.info("%s: %s, %d", fields["who"], text, status, extra=fields | {"details": page})

    def refusal(self, request: Request, principal: Principal | None, refused: Refused, address: str) -> None:
        """Tell of a request that was refused, unless there are too many of them."""
        if not self._may_write(address):
            return
        action, target = request.method, printable(request.url.path)
        fields = _fields(principal.name if principal else address, action, target, refused.status, address)
        text = printable(str(refused))
        log.warning(
            "%s: %s %s refused, %d: %s",
            *(fields["who"], action, target, refused.status, text),
            extra=fields | {"cause": refused.cause},
        )

    def _may_write(self, address: str) -> bool:
        """Count a refusal; whether it gets a line."""
        if (now := time.monotonic()) - self._began >= WINDOW:
            self._summarize()
            self._began, self._written = now, 0
        number = self._refusals[address] = self._refusals.get(address, 0) + 1
        if len(self._refusals) > _MAX_ADDRESSES:
            self._refusals.popitem(last=False)
        if number > MAX_REFUSALS or self._written >= MAX_ALL_REFUSALS:
            return False
        self._written += 1
        return True

    def _summarize(self) -> None:
        """Say how many refusals of the last window have no line."""
        total = sum(self._refusals.values())
        if total > self._written:
            log.warning("%d more requests from %d addresses were refused", total - self._written, len(self._refusals))
        self._refusals.clear()


def printable(text: str) -> str:
    """Escape line breaks and the like, so that a name that somebody sends cannot forge a log line."""
    return "".join(char if char.isprintable() else f"\\x{ord(char):02x}" for char in text[:_MAX_NAME])


def _fields(who: str, action: str, target: str, status: int, address: str) -> dict[str, Any]:
    return {"who": printable(who), "action": action, "target": target, "status": status, "client": printable(address)}
