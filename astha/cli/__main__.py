"""`python -m astha.cli`: the command `astha` where it is not installed."""

from astha.cli import main

if __name__ == "__main__":
    main(prog_name="astha")
