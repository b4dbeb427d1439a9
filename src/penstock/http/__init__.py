"""Penstock over HTTP: `app.asgi()` mounts anywhere, `penstock serve` runs it. Needs the extra `penstock[http]`.

`Principal` and `Trust` say who may do what; neither needs the extra.
"""

from penstock.http.principal import Principal
from penstock.http.trusted_header import Trust

__all__ = ["Principal", "Trust"]
