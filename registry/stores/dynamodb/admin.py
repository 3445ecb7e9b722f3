"""Creates and removes the table of a registry."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import msgspec
from botocore.exceptions import ClientError

from registry.errors import Invalid, Unavailable
from registry.stores.dynamodb.client import Action, Condition, ConditionFailed, DynamoClient
from registry.stores.dynamodb.state import DAEMON, REGISTRY, State

_READY_S = 120.0
_LOOK_S = 0.2


class Capacity(msgspec.Struct, frozen=True, kw_only=True):
    """On demand, or provisioned. Auto scaling of a provisioned table is set up outside."""

    mode: Literal["on-demand", "provisioned"] = "on-demand"
    read_units: int = 25
    write_units: int = 25


async def create_registry(client: DynamoClient, capacity: Capacity | None = None) -> None:
    """Creates the table and the state items, unless they exist. Any number of callers may do so together."""
    try:
        await client.call(
            "create_table",
            KeySchema=[
                {"AttributeName": "pk", "KeyType": "HASH"},
                {"AttributeName": "sk", "KeyType": "RANGE"},
            ],
            AttributeDefinitions=[
                {"AttributeName": "pk", "AttributeType": "S"},
                {"AttributeName": "sk", "AttributeType": "S"},
            ],
            **_arguments(capacity or Capacity()),
        )
    except Unavailable as error:
        if not _says(error, "ResourceInUseException"):
            raise
    await _until_active(client)
    try:
        ttl = {"Enabled": True, "AttributeName": "expires"}
        await client.call("update_time_to_live", TimeToLiveSpecification=ttl)
    except Unavailable as error:
        if not _says(error, "ValidationException"):  # it is enabled already
            raise
    for domain in (REGISTRY, DAEMON):
        first = Action("put", domain.key, State(0, {}, 0, "").attributes(), Condition({"seq": None}))
        try:
            await client.write_transaction([first])
        except ConditionFailed:
            continue


def _arguments(capacity: Capacity) -> dict[str, Any]:
    if capacity.mode == "on-demand":
        return {"BillingMode": "PAY_PER_REQUEST"}
    for name in ("read_units", "write_units"):
        if getattr(capacity, name) < 1:
            raise Invalid(name, getattr(capacity, name), "must be at least 1")
    units = {"ReadCapacityUnits": capacity.read_units, "WriteCapacityUnits": capacity.write_units}
    return {"BillingMode": "PROVISIONED", "ProvisionedThroughput": units}


async def _until_active(client: DynamoClient) -> None:
    deadline = asyncio.get_running_loop().time() + _READY_S
    while (await client.call("describe_table"))["Table"]["TableStatus"] != "ACTIVE":
        if asyncio.get_running_loop().time() > deadline:
            raise Unavailable(f"{client.where}: the table was not ready within {_READY_S:.0f} s")
        await asyncio.sleep(_LOOK_S)


def _says(error: Unavailable, code: str) -> bool:
    return isinstance(error.__cause__, ClientError) and error.__cause__.response["Error"]["Code"] == code
