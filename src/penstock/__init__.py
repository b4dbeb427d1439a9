"""Penstock: a job queue for Python on Redis and Valkey."""
