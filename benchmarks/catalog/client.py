"""A client that does nothing but send requests, on one connection that stays open."""

from __future__ import annotations

from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

import msgspec

from components.lib.lake.schema.table_schema import TableSchema

NAMESPACE = "bench"
_JSON = {"Content-Type": "application/json"}


class Client:
    def __init__(self, url: str) -> None:
        self._connection = HTTPConnection(urlsplit(url).netloc, timeout=120)

    def close(self) -> None:
        """Another request opens it again."""
        self._connection.close()

    def send(self, method: str, path: str, body: bytes | None = None) -> bytes:
        """Raises RuntimeError for any other status than success."""
        self._connection.request(method, path, body, _JSON if body else {})
        response = self._connection.getresponse()
        content = response.read()
        if response.status >= 300:
            raise RuntimeError(f"{method} {path}: {response.status} {content[:500]!r}")
        return content

    def create_namespace(self) -> None:
        self.send("POST", "/v1/namespaces", msgspec.json.encode({"namespace": [NAMESPACE]}))

    def create_table(self, name: str, schema: TableSchema, location: str) -> str:
        """Returns its UUID."""
        body = {
            "name": name,
            "location": location,
            "schema": _raw(schema.iceberg),
            "partition-spec": _raw(schema.partition),
        }
        return _uuid(self.send("POST", f"/v1/namespaces/{NAMESPACE}/tables", msgspec.json.encode(body)))

    def register_table(self, name: str, metadata_location: str) -> None:
        body = msgspec.json.encode({"name": name, "metadata-location": metadata_location})
        self.send("POST", f"/v1/namespaces/{NAMESPACE}/register", body)

    def commit(self, name: str, request: bytes) -> None:
        self.send("POST", f"/v1/namespaces/{NAMESPACE}/tables/{name}", request)

    def load(self, name: str) -> bytes:
        return self.send("GET", f"/v1/namespaces/{NAMESPACE}/tables/{name}")


def _raw(model: Any) -> msgspec.Raw:
    return msgspec.Raw(model.model_dump_json().encode())


def _uuid(response: bytes) -> str:
    return str(msgspec.json.decode(response)["metadata"]["table-uuid"])
