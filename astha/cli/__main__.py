"""`python -m astha.cli`: the command `astha` without an installed script."""

from astha.cli import main

if __name__ == "__main__":
    main(prog_name="astha")
