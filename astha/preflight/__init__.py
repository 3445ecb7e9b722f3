"""What `astha check` looks at before a daemon is started.

In: settings. Out: one finding for each check: ok, a problem with its remedy, or why it could not be checked.
Guaranteed: nothing is changed; what can't be checked is never reported as right or wrong.
"""

from astha.preflight.checks import grants, preflight
from astha.preflight.findings import Finding, Verdict

__all__ = ["Finding", "Verdict", "grants", "preflight"]
