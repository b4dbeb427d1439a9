"""The protocol of `penstock serve`: closes a connection on which a request's head does not come in time."""

import asyncio
from typing import Any, Final

from uvicorn.protocols.http.h11_impl import H11Protocol

HEADER_TIMEOUT: Final = 10.0  #: seconds


class HeaderTimeoutProtocol(H11Protocol):
    """Uvicorn itself waits for ever, and such a connection counts against its limit of connections."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self._start_timer()

    def data_received(self, data: bytes) -> None:
        if self._timer is None and not self._is_handling:
            self._start_timer()  # the next request on a connection that is kept alive
        super().data_received(data)
        if self._is_handling:
            self._stop_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    @property
    def _is_handling(self) -> bool:
        """Whether a request's head has come that is not answered yet."""
        return self.cycle is not None and not self.cycle.response_complete

    def _start_timer(self) -> None:
        self._timer = self.loop.call_later(HEADER_TIMEOUT, self.transport.close)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
