"""Penstock beside a bare loop and beside other job queues: `make bench`, `make bench-peers`."""
