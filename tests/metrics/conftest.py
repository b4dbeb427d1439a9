"""The HTTP service that shows the metrics of the app of each test."""

from tests.http.conftest import client

__all__ = ["client"]
