"""The checks of `astha check`, to be made before a daemon is started.

In: settings. Out: one result for each check: ok, a warning or a problem with its remedy, or why it could not be made.
Guaranteed: nothing is changed; a check that could not be made is never reported as ok or as a problem.
"""

from astha.preflight.checks import grants, preflight
from astha.preflight.results import PreflightResult, Verdict

__all__ = ["PreflightResult", "Verdict", "grants", "preflight"]
