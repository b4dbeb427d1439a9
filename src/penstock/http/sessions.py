"""Sessions of browsers, which cannot send a token by themselves: a signed cookie, and nothing is stored."""

import hashlib
import hmac
import secrets
import time
from typing import Final

from starlette.requests import HTTPConnection

LIFETIME: Final = 12 * 3600  #: seconds
_KEY_BYTES: Final = 32


def session_id(digest: bytes) -> str:
    """How a session names its token: a hash of the token's hash, which tells nothing about either."""
    return hashlib.sha256(b"session" + digest).hexdigest()[:32]


class Sessions:
    """Makes and checks cookies. Services with the same key know each other's; without a key it is random."""

    def __init__(self, key: str = "") -> None:
        self._key = hashlib.sha256(key.encode()).digest() if key else secrets.token_bytes(_KEY_BYTES)

    def set_cookie(self, request: HTTPConnection, digest: bytes) -> str:
        """The header that has a browser keep a session for this token."""
        expires = int(time.time()) + LIFETIME
        value = f"{session_id(digest)}.{expires}.{self._sign(digest, expires)}"
        return self._header(request, value, LIFETIME)

    def delete_cookie(self, request: HTTPConnection) -> str:
        return self._header(request, "", 0)

    def named(self, request: HTTPConnection) -> str:
        """The session id in the request's cookie, which is not checked yet; empty without one."""
        return request.cookies.get(_cookie_name(request), "").partition(".")[0]

    def is_valid(self, request: HTTPConnection, digest: bytes) -> bool:
        """Whether the cookie was made for this token, and is not too old."""
        parts = request.cookies.get(_cookie_name(request), "").split(".")
        if len(parts) != 3 or not (parts[1].isascii() and parts[1].isdecimal() and len(parts[1]) < 12):
            return False
        expires = int(parts[1])
        return hmac.compare_digest(self._sign(digest, expires).encode(), parts[2].encode()) and expires > time.time()

    def _sign(self, digest: bytes, expires: int) -> str:
        return hmac.new(self._key, digest + str(expires).encode(), hashlib.sha256).hexdigest()

    def _header(self, request: HTTPConnection, value: str, seconds: int) -> str:
        path = request.scope.get("root_path", "").rstrip("/") or "/"
        is_secure = "https" in {request.scope.get("scheme"), request.headers.get("x-forwarded-proto")}
        secure = "; Secure" if is_secure else ""
        name = _cookie_name(request)
        return f"{name}={value}; Path={path}; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}"


def _cookie_name(request: HTTPConnection) -> str:
    """Browsers send cookies to every port of a host, so the name has the port."""
    host = request.headers.get("host", "").rpartition("]")[2]
    port = host.partition(":")[2]
    return f"penstock-{port}" if port.isascii() and port.isdecimal() else "penstock"
