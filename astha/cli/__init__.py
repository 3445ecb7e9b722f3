"""The command `astha`.

In: a command line and the environment. Out: text for people, or JSON for machines, on stdout; everything else on
stderr. Guaranteed: exit codes that mean something (`astha.cli.exit_codes`), one line for an error, never a password.
"""

import sys

try:
    from astha.cli.root import main
except KeyboardInterrupt:  # before there is a command that could handle it: no traceback of half an import
    sys.stderr.write("astha: interrupted\n")
    raise SystemExit(130) from None  # `Exit.INTERRUPTED`, which may not be there yet

__all__ = ["main"]
