"""`python -m tests.chaos --seed 7 --seconds 120`."""

import sys

from tests.chaos.run import main

if __name__ == "__main__":
    sys.exit(main())
