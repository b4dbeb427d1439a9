"""`python -m penstock`, for where the command is not on the path."""

from penstock.cli import main

if __name__ == "__main__":
    main()
