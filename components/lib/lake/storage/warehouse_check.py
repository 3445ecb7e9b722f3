"""`astha check`: whether the warehouse takes files."""

from __future__ import annotations

from astha.errors import ConfigError
from astha.subscribers import CheckResult, LakeSettings
from components.lib.lake.storage.location_checks import try_location
from components.lib.lake.storage.locations import canonical
from components.lib.lake.storage.objects import Objects, StorageError

_NAME = "warehouse"
_ANSWER_S = 10.0


async def check_warehouse(lake: LakeSettings) -> CheckResult:
    """A small object is written to it, read back and deleted."""
    try:
        location = canonical(lake.warehouse)
        await try_location(Objects(lake, timeout_s=_ANSWER_S, retry_s=_ANSWER_S), location)
    except ConfigError as error:
        return CheckResult(_NAME, str(error), "correct lake.warehouse")
    except StorageError as error:
        remedy = "let this user write there, create the bucket, correct lake.s3, or set lake.warehouse to another place"
        return CheckResult(_NAME, f"{location} takes no files: {error}", remedy)
    return CheckResult(_NAME, f"{location} takes files and gives them back")
