"""A program that uses the embedded server and runs the commands on its standard input, one per line.

``wait``: become a user and print "ready"
``incr K``, ``set K V``, ``get K``: on the server, reconnecting until it works
``fork K``: fork a child that sets K, and print its pid
``idle``: fork a child that uses nothing, and print its pid
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


def run(endpoint: Endpoint, line: str) -> str:
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
        print(run(endpoint, line), flush=True)


main()
