"""`python -m penstock.demo`."""

import sys

from penstock.demo.run import main

if __name__ == "__main__":
    sys.exit(main())
