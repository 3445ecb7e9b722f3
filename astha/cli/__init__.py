"""The command `astha`.

In: a command line and the environment. Out: text for people or JSON for machines on stdout, everything else on stderr.
Guaranteed: documented exit codes (`astha.cli.exit_codes`), one line per error, never a password.
"""

import sys

try:
    from astha.cli.root import main
except KeyboardInterrupt:  # during imports, before a command could handle it
    sys.stderr.write("astha: interrupted\n")
    raise SystemExit(130) from None  # `Exit.INTERRUPTED`, which may not be imported yet

__all__ = ["main"]
