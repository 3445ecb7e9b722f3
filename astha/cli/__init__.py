"""The command `astha`.

In: a command line and the environment. Out: text for people, or JSON for machines, on stdout; everything else on
stderr. Guaranteed: exit codes that mean something (`astha.cli.exits`), one line for an error, never a password.
"""

from astha.cli.root import main

__all__ = ["main"]
