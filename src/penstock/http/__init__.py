"""Penstock over HTTP: `app.asgi()` mounts anywhere, `penstock serve` runs it. Needs the extra `penstock[http]`."""
