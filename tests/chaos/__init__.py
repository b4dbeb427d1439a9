"""Workers, producers and operators at work while everything around them breaks: `python -m tests.chaos --help`."""
