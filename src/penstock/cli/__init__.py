"""The command line: `penstock`, or `python -m penstock.cli`."""

from penstock.cli.root import main

__all__ = ["main"]
