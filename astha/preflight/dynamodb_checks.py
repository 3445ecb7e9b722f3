"""Checks of a registry in DynamoDB: its table, what the role may do, and the clock. They change nothing."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from astha.preflight.results import PreflightResult, ok, problem, unknown, warning
from astha.settings import Settings
from registry.dynamodb_url import parse_endpoint
from registry.errors import PermissionDenied, RegistryError
from registry.stores.dynamodb.client import Action, Condition, ConditionFailed, DynamoClient

_KEY = ("check", "=")
_NEVER = Condition({"never": "so"})
_WIRE_KEY = {"pk": {"S": _KEY[0]}, "sk": {"S": _KEY[1]}}


async def dynamodb_checks(settings: Settings) -> list[PreflightResult]:
    client = DynamoClient(parse_endpoint(settings.registry.url.get_secret_value()))
    checks: dict[str, Callable[[], Awaitable[PreflightResult]]] = {
        "table": lambda: _table(client),
        "time to live": lambda: _time_to_live(client),
        "permissions": lambda: _permissions(client),
        "clock": lambda: _clock(client, settings.clock.tolerance_s),
    }
    results = []
    try:
        for name, check in checks.items():
            try:
                results.append(await check())
            except PermissionDenied as error:
                results.append(problem(name, str(error), "give the role the actions that docs/parts/dynamodb.md lists"))
            except RegistryError as error:
                results.append(unknown(name, str(error), "check that registry.url is correct and reachable"))
    finally:
        await client.close()
    return results


async def _table(client: DynamoClient) -> PreflightResult:
    found = (await client.call("describe_table"))["Table"]
    mode = found.get("BillingModeSummary", {}).get("BillingMode", "PROVISIONED")
    units = found.get("ProvisionedThroughput", {})
    shown = "on demand"
    if mode == "PROVISIONED":
        shown = f"{units.get('ReadCapacityUnits')} read and {units.get('WriteCapacityUnits')} write units"
    if found["TableStatus"] not in ("ACTIVE", "UPDATING"):
        return problem("table", f"{client.where} is {found['TableStatus']}", "wait until it is active")
    if found.get("Replicas"):
        return problem(
            "table",
            f"{client.where} is a global table: two regions would both accept commits",
            "remove its replicas in other regions",
        )
    return ok("table", f"{client.where} is active, {shown}")


async def _time_to_live(client: DynamoClient) -> PreflightResult:
    found = (await client.call("describe_time_to_live"))["TimeToLiveDescription"]
    if found.get("TimeToLiveStatus") in ("ENABLED", "ENABLING") and found.get("AttributeName") == "expires":
        return ok("time to live", "entries of the commit log are removed after a day")
    return warning(
        "time to live",
        "it is not enabled on the attribute `expires`, so the commit log grows without end",
        "enable time to live of the table on the attribute expires",
    )


async def _permissions(client: DynamoClient) -> PreflightResult:
    """Sends writes whose conditions can't hold."""

    async def refused(operation: str, **request: Any) -> None:
        with suppress(ConditionFailed):
            await client.call(operation, ConditionExpression="attribute_exists(never)", **request)

    await client.query("log", limit=1)
    await client.get_many([_KEY, ("check", "=2")])
    await refused("put_item", Item=_WIRE_KEY)
    await refused("delete_item", Key=_WIRE_KEY)
    await refused("update_item", Key=_WIRE_KEY)
    with suppress(ConditionFailed):
        await client.write_transaction([Action("check", _KEY, condition=_NEVER)])
    return ok("permissions", "the role may read and write items (batches of writes can't be tried)")


async def _clock(client: DynamoClient, tolerance_s: float) -> PreflightResult:
    before = time.time()
    server = await client.server_time_ms() / 1000
    # The server's time has whole seconds, and was read at some point during the request.
    skew = max(server - time.time(), before - server - 1, 0.0)
    if skew > tolerance_s:
        return problem(
            "clock",
            f"this machine's clock differs from DynamoDB's by {skew:.0f} s",
            "synchronize the clock: AWS refuses requests that are five minutes off",
        )
    return ok("clock", f"agrees with DynamoDB's within {max(skew, 1):.0f} s")
