"""Requests to DynamoDB: items with a partition key, a sort key and one text, with backoff and the registry's errors.

aiobotocore signs and sends them (decision 0034). Throttled and failed requests are repeated with exponential backoff
and full jitter. A transaction is sent with one token for all its attempts, so that a repetition does nothing.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from email.utils import parsedate_to_datetime
from typing import Any, Literal, TypeAlias

import msgspec
from aiobotocore.config import AioConfig
from aiobotocore.session import get_session
from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError

from registry.dynamodb_url import Endpoint
from registry.errors import Invalid, PermissionDenied, RegistryError, SchemaMismatch, Unavailable
from registry.stores.dynamodb.layout import ItemKey

MAX_ACTIONS = 100
"""Actions of one DynamoDB transaction."""

_BATCH_GET, _BATCH_WRITE = 100, 25
_PARALLEL = 8
_ATTEMPTS = 10
_FIRST_BACKOFF_S, _LONGEST_BACKOFF_S = 0.025, 2.0

_RETRIED = frozenset(
    (
        "InternalServerError",
        "LimitExceededException",
        "ProvisionedThroughputExceededException",
        "RequestLimitExceeded",
        "ServiceUnavailable",
        "ThrottlingException",
        "TransactionConflictException",
        "TransactionInProgressException",
    )
)
_DENIED = frozenset(
    ("AccessDeniedException", "UnrecognizedClientException", "InvalidSignatureException", "ExpiredTokenException")
)

Wire: TypeAlias = dict[str, Any]
Attributes: TypeAlias = Mapping[str, str | int | bytes | None]


class Condition(msgspec.Struct, frozen=True):
    """Attributes that an item must have; None: it must not have the attribute."""

    attributes: dict[str, str | int | None]


class Action(msgspec.Struct, frozen=True):
    """One action of a transaction: put an item, delete it, or only check its condition."""

    kind: Literal["put", "delete", "check"]
    key: ItemKey
    attributes: Attributes = {}
    condition: Condition | None = None


class ConditionFailed(Exception):
    """A condition of a transaction did not hold: nothing was written."""


class Item(msgspec.Struct, frozen=True):
    key: ItemKey
    attributes: dict[str, str | int | bytes]


class DynamoClient:
    def __init__(self, endpoint: Endpoint, *, connections: int = 20, connect_timeout_s: float = 10.0) -> None:
        self.endpoint = endpoint
        self._config = AioConfig(
            max_pool_connections=connections,
            connect_timeout=connect_timeout_s,
            read_timeout=30,
            retries={"total_max_attempts": 1},  # repeated here, with one token per transaction
        )
        self._stack = AsyncExitStack()
        self._client: Any = None
        self._opening = asyncio.Lock()

    @property
    def where(self) -> str:
        return f"dynamodb://{self.endpoint.region}/{self.endpoint.table}"

    async def close(self) -> None:
        self._client = None
        await self._stack.aclose()

    # -- items -------------------------------------------------------------------------------------------

    async def get(self, key: ItemKey) -> Item | None:
        found = await self.call("get_item", Key=_wire_key(key), ConsistentRead=True)
        return _item(found["Item"]) if "Item" in found else None

    async def get_many(self, keys: Sequence[ItemKey]) -> dict[ItemKey, Item]:
        """Returns those that exist. Not atomic over all of them."""
        if len(keys) == 1:
            one = await self.get(keys[0])
            return {} if one is None else {one.key: one}
        batches = [keys[start : start + _BATCH_GET] for start in range(0, len(keys), _BATCH_GET)]
        found: dict[ItemKey, Item] = {}
        for start in range(0, len(batches), _PARALLEL):
            for items in await asyncio.gather(*map(self._get_batch, batches[start : start + _PARALLEL])):
                found |= {item.key: item for item in items}
        return found

    async def _get_batch(self, keys: Sequence[ItemKey]) -> list[Item]:
        name, items, attempt = self.endpoint.table, [], 0
        wanted = [_wire_key(key) for key in keys]
        while wanted:
            request = {name: {"Keys": wanted, "ConsistentRead": True}}
            found = await self.call("batch_get_item", with_table=False, RequestItems=request)
            items += [_item(wire) for wire in found["Responses"].get(name, ())]
            wanted = found.get("UnprocessedKeys", {}).get(name, {}).get("Keys", [])
            if wanted:
                await self._pause(attempt)
                attempt += 1
        return items

    async def query(
        self,
        partition: str,
        *,
        low: str | None = None,
        high: str | None = None,
        backwards: bool = False,
        limit: int | None = None,
        after: str | None = None,
    ) -> tuple[list[Item], str | None]:
        """Returns one response of items with ``low`` <= sort key <= ``high``, and the key after which more follow."""
        values: Wire = {":p": {"S": partition}}
        condition = "pk = :p"
        if low is not None and high is not None:
            condition += " AND sk BETWEEN :l AND :h"
            values |= {":l": {"S": low}, ":h": {"S": high}}
        elif low is not None:
            condition, values = condition + " AND sk >= :l", values | {":l": {"S": low}}
        elif high is not None:
            condition, values = condition + " AND sk <= :h", values | {":h": {"S": high}}
        request: Wire = {
            "KeyConditionExpression": condition,
            "ExpressionAttributeValues": values,
            "ConsistentRead": True,
            "ScanIndexForward": not backwards,
        }
        if limit is not None:
            request["Limit"] = limit
        if after is not None:
            request["ExclusiveStartKey"] = _wire_key((partition, after))
        found = await self.call("query", **request)
        last = found.get("LastEvaluatedKey")
        return [_item(wire) for wire in found["Items"]], None if last is None else last["sk"]["S"]

    async def write_transaction(self, actions: Sequence[Action], *, token: str | None = None) -> None:
        """Raises ConditionFailed if a condition did not hold. At most `MAX_ACTIONS`."""
        items = [self._wire_action(action) for action in actions]
        token = token or uuid.uuid4().hex
        for attempt in range(_ATTEMPTS):
            try:
                await self.call("transact_write_items", with_table=False, TransactItems=items, ClientRequestToken=token)
            except ClientError as error:
                codes = {reason.get("Code") for reason in error.response.get("CancellationReasons", ())}
                if "ConditionalCheckFailed" in codes:
                    raise ConditionFailed from error
                if not codes & {"TransactionConflict", "ThrottlingError", "ProvisionedThroughputExceeded"}:
                    raise self.translated(error) from error
                if attempt + 1 == _ATTEMPTS:
                    raise Unavailable(f"{self.where}: the transaction met others {_ATTEMPTS} times") from error
                token = uuid.uuid4().hex  # a cancelled transaction has written nothing, and its token is used up
                await self._pause(attempt)
            else:
                return

    async def put_many(self, items: Sequence[tuple[ItemKey, Attributes]]) -> None:
        """Puts items, each for itself."""
        await self._write_batches([{"PutRequest": {"Item": _wire_item(key, values)}} for key, values in items])

    async def delete_many(self, keys: Sequence[ItemKey]) -> None:
        await self._write_batches([{"DeleteRequest": {"Key": _wire_key(key)}} for key in keys])

    async def expire_many(self, keys: Sequence[ItemKey], at_s: int) -> None:
        """Has DynamoDB remove these items after a time, in seconds since the epoch. Those that are gone stay so."""
        for start in range(0, len(keys), _PARALLEL):
            await asyncio.gather(*(self._expire(key, at_s) for key in keys[start : start + _PARALLEL]))

    async def _expire(self, key: ItemKey, at_s: int) -> None:
        with suppress(ConditionFailed):
            await self.call(
                "update_item",
                Key=_wire_key(key),
                UpdateExpression="SET expires = :at",
                ConditionExpression="attribute_exists(pk)",
                ExpressionAttributeValues={":at": {"N": str(at_s)}},
            )

    async def _write_batches(self, requests: Sequence[Wire]) -> None:
        batches = [requests[start : start + _BATCH_WRITE] for start in range(0, len(requests), _BATCH_WRITE)]
        for start in range(0, len(batches), _PARALLEL):
            await asyncio.gather(*map(self._write_batch, batches[start : start + _PARALLEL]))

    async def _write_batch(self, requests: Sequence[Wire]) -> None:
        name, attempt = self.endpoint.table, 0
        while requests:
            done = await self.call("batch_write_item", with_table=False, RequestItems={name: list(requests)})
            requests = done.get("UnprocessedItems", {}).get(name, [])
            if requests:
                await self._pause(attempt)
                attempt += 1

    async def server_time_ms(self) -> int:
        found = await self.call("describe_table")
        date = found["ResponseMetadata"]["HTTPHeaders"]["date"]
        return int(parsedate_to_datetime(date).timestamp() * 1_000)

    async def table_identity(self) -> str:
        """Differs from that of every other table, also of one that had or has the same name."""
        table = (await self.call("describe_table"))["Table"]
        return str(table.get("TableId") or table["CreationDateTime"].timestamp())  # DynamoDB Local has no ids

    # -- requests ----------------------------------------------------------------------------------------

    async def call(self, operation: str, *, with_table: bool = True, **request: Any) -> Any:
        """Sends a request, repeatedly if it is throttled or fails on the way."""
        if with_table:
            request["TableName"] = self.endpoint.table
        attempt = 0
        while True:
            attempt += 1
            try:
                return await getattr(await self._connected(), operation)(**request)
            except ClientError as error:
                code = error.response["Error"]["Code"]
                if code == "TransactionCanceledException":
                    raise
                if code == "ConditionalCheckFailedException":
                    raise ConditionFailed from error
                if code not in _RETRIED or attempt == _ATTEMPTS:
                    raise self.translated(error) from error
            except NoCredentialsError as error:
                raise PermissionDenied(f"{self.where}: no AWS credentials: set AWS_PROFILE, or a role") from error
            except (BotoCoreError, OSError) as error:
                if attempt == _ATTEMPTS // 2:
                    raise Unavailable(f"{self.where}: {error}") from error
            await self._pause(attempt - 1)

    def translated(self, error: ClientError) -> RegistryError:
        code, message = error.response["Error"]["Code"], error.response["Error"].get("Message", "")
        if code == "ResourceNotFoundException":
            return SchemaMismatch(f"{self.where} holds no registry: the table does not exist")
        if code in _DENIED:
            return PermissionDenied(f"{self.where}: {code}: {message}")
        if "size has exceeded" in message or "exceeds the maximum" in message or "exceeded the maximum" in message:
            return Invalid("row", "...", f"is larger than an item of DynamoDB may be: {message[:100]}")
        return Unavailable(f"{self.where}: {code}: {message}")

    async def _connected(self) -> Any:
        if self._client is None:
            async with self._opening:
                if self._client is None:
                    local = self.endpoint.url is not None
                    keys = {"aws_access_key_id": "local", "aws_secret_access_key": "local"} if local else {}
                    self._client = await self._stack.enter_async_context(
                        get_session().create_client(
                            "dynamodb",
                            region_name=self.endpoint.region,
                            endpoint_url=self.endpoint.url,
                            config=self._config,
                            **keys,
                        )
                    )
        return self._client

    async def _pause(self, attempt: int) -> None:
        longest = min(_LONGEST_BACKOFF_S, _FIRST_BACKOFF_S * 2**attempt)
        await asyncio.sleep(random.uniform(0, longest))  # noqa: S311  (jitter)

    def _wire_action(self, action: Action) -> Wire:
        body: Wire = {"TableName": self.endpoint.table}
        if action.condition is not None:
            body |= _wire_condition(action.condition)
        match action.kind:
            case "put":
                return {"Put": body | {"Item": _wire_item(action.key, action.attributes)}}
            case "delete":
                return {"Delete": body | {"Key": _wire_key(action.key)}}
            case "check":
                return {"ConditionCheck": body | {"Key": _wire_key(action.key)}}


def _wire_key(key: ItemKey) -> Wire:
    return {"pk": {"S": key[0]}, "sk": {"S": key[1]}}


def _wire_item(key: ItemKey, attributes: Attributes) -> Wire:
    return _wire_key(key) | {name: _wire_value(value) for name, value in attributes.items() if value is not None}


def _wire_value(value: str | int | bytes | None) -> Wire:
    if isinstance(value, str):
        return {"S": value}
    return {"B": value} if isinstance(value, bytes) else {"N": str(value)}


def _wire_condition(condition: Condition) -> Wire:
    parts, names, values = [], {}, {}
    for number, (name, value) in enumerate(condition.attributes.items()):
        names[f"#c{number}"] = name
        if value is None:
            parts.append(f"attribute_not_exists(#c{number})")
        else:
            parts.append(f"#c{number} = :c{number}")
            values[f":c{number}"] = _wire_value(value)
    found: Wire = {"ConditionExpression": " AND ".join(parts), "ExpressionAttributeNames": names}
    return found | ({"ExpressionAttributeValues": values} if values else {})


def _item(wire: Wire) -> Item:
    key = (wire.pop("pk")["S"], wire.pop("sk")["S"])
    return Item(key, {name: _value(value) for name, value in wire.items()})


def _value(wire: Wire) -> str | int | bytes:
    ((kind, value),) = wire.items()
    return int(value) if kind == "N" else value
