"""The protocol of `penstock serve`: the head of a request comes in time, or the connection is closed."""

import asyncio
from typing import Any, Final

from uvicorn.protocols.http.h11_impl import H11Protocol

SECONDS: Final = 10.0  #: in which a head must have come


class HeaderTimeoutProtocol(H11Protocol):
    """Uvicorn itself waits for ever, and counts whoever keeps it waiting as one of the connections that it allows."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._alarm: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self._expect()

    def data_received(self, data: bytes) -> None:
        if self._alarm is None and not self._is_asked:
            self._expect()  # the next request on a connection that is kept alive
        super().data_received(data)
        if self._is_asked:
            self._forget()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()
        super().connection_lost(exc)

    @property
    def _is_asked(self) -> bool:
        """Whether a head has come that is not answered yet."""
        return self.cycle is not None and not self.cycle.response_complete

    def _expect(self) -> None:
        self._alarm = self.loop.call_later(SECONDS, self.transport.close)

    def _forget(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
