"""The proxy that tests put in front of a server."""

import socket

from tests.proxy import Proxy, proxied
from tests.servers import Server


def test_a_proxy_whose_server_was_away_passes_the_next_connection_on(single: Server) -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        away = int(nobody.getsockname()[1])
    with proxied(away) as proxy:
        assert _answer(proxy) == b"", "it is closed, as it would be without a proxy"
        proxy.target = single.port
        assert _answer(proxy) == b"+PONG\r\n"


def _answer(proxy: Proxy) -> bytes:
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=5) as connection:
        try:
            connection.sendall(b"*1\r\n$4\r\nPING\r\n")
            return connection.recv(100)
        except ConnectionError:
            return b""
