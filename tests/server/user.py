"""A program that uses the embedded server, and does what it is told line by line on its standard input.

``wait``: become a user and say "ready"
``incr K``, ``set K V``, ``get K``: on the server, reconnecting as often as it takes
``fork K``: fork a child that sets K, and say its pid
``idle``: fork a child that uses nothing, and say its pid
"""

import os
import signal
import sys

import redis

from penstock.server.endpoint import Endpoint
from penstock.server.urls import parse


def call(endpoint: Endpoint, *command: str) -> object:
    while True:
        try:
            client = endpoint.client_sync()
            return client.execute_command(*command)  # type: ignore[no-untyped-call]
        except (redis.ConnectionError, redis.TimeoutError):
            endpoint.forget_sync()


def child(endpoint: Endpoint, *command: str) -> int:
    pid = os.fork()
    if pid:
        return pid
    os.close(0)
    os.close(1)
    if command:
        call(endpoint, *command)
    while True:
        signal.pause()


def obey(endpoint: Endpoint, line: str) -> str:
    match line.split():
        case ["wait"]:
            endpoint.client_sync()
            return "ready"
        case ["fork", key]:
            return str(child(endpoint, "SET", key, "child"))
        case ["idle"]:
            return str(child(endpoint))
        case command:
            answer = call(endpoint, *command)
            return answer.decode() if isinstance(answer, bytes) else str(answer)


def main() -> None:
    endpoint = Endpoint(parse(f"embedded://{sys.argv[1]}"), slot_key=b"penstock:{test}:meta")
    for line in sys.stdin:
        print(obey(endpoint, line), flush=True)


main()
