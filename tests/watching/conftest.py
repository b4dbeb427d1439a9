"""An app on a real server for each test, as for the API."""

from tests.api.conftest import app, unhandled, url

__all__ = ["app", "unhandled", "url"]
