"""A guided run of half a minute: `penstock demo`, `make demo` or `python -m penstock.demo`.

It works on an embedded server in a temporary directory, which it removes, and with worker processes as you would start
them. Whatever it prints was measured in that run.
"""
