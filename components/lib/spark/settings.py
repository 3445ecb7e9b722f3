"""Settings of a Spark session: `settings: spark:` of the compactor in subscriptions.yaml."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, field_validator

from astha.redaction import is_secret_name, secrets_in_url

Seconds = Annotated[float, Field(gt=0)]

_MASTERS = "local[N], spark://HOST:PORT, yarn, k8s://URL, or sc://HOST:PORT for Spark Connect"
_RESERVED = {
    "spark.master": "master",
    "spark.remote": "master",
    "spark.app.name": "name",
    "spark.driver.memory": "memory",
    "spark.driver.host": "host",
    "spark.pyspark.python": "python",
}


def _as_text(value: object) -> object:
    """Returns YAML's booleans and numbers as Spark writes them."""
    return str(value).lower() if isinstance(value, bool | int | float) else value


class SparkSettings(BaseModel):
    """The defaults need Java 17 on this machine, and nothing else."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    master: str = Field("local[2]", description=f"Where tasks run: {_MASTERS}.")
    options: dict[str, Annotated[SecretStr, BeforeValidator(_as_text)]] = Field(
        {}, description="Spark properties, such as spark.executor.memory: 4g. They override those that Astha sets."
    )
    environment: tuple[Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*\*?$")], ...] = Field(
        (),
        description="Environment variables that the JVM and its workers get besides those that Java, Spark and Python"
        " need, such as HTTPS_PROXY. A name may end in *.",
    )
    name: str = Field("astha-compactor", description="Name of the application in Spark.")
    memory: str = Field("1g", description="Heap of the session's JVM. Merges use memory outside of it.")
    python: str | None = Field(
        None, description="Python executable of the workers. Default: the one that runs the daemon."
    )
    host: str | None = Field(
        None,
        description="Address at which workers reach the daemon. Default: the local address of the route to the master.",
    )
    port: Annotated[int, Field(ge=0, le=65535)] = Field(
        0, description="Port at which workers connect to the daemon; 0 for a free one."
    )
    parallel: Annotated[int, Field(ge=1)] = Field(
        16, description="Most tasks submitted to Spark at a time; further ones wait in the daemon."
    )
    start_timeout_s: Seconds = Field(120.0, description="Most seconds for a session to start.")
    answer_timeout_s: Seconds = Field(30.0, description="Most seconds for a session to answer before it is replaced.")
    stop_timeout_s: Seconds = Field(5.0, description="Most seconds for a cancelled task to finish what it is writing.")
    log_level: Literal["debug", "info", "warn", "error"] = Field(
        "warn", description="Lowest level of Spark's log messages that are logged."
    )

    @field_validator("master")
    @classmethod
    def _known(cls, given: str) -> str:
        if (given.startswith("local[") and given.endswith("]")) or given in ("local", "yarn"):
            return given
        if given.startswith(("spark://", "sc://", "k8s://")) and urlsplit(given).netloc:
            return given
        raise ValueError(f"{given!r} is not a Spark master: use {_MASTERS}")

    @field_validator("options")
    @classmethod
    def _allowed(cls, given: dict[str, SecretStr]) -> dict[str, SecretStr]:
        for name, value in given.items():
            if not name.startswith("spark."):
                raise ValueError(f"{name!r} is not a Spark property: their names begin with 'spark.'")
            if name in _RESERVED:
                raise ValueError(f"{name} is set by {_RESERVED[name]!r}, not under 'options'")
            if name == "spark.speculation" and value.get_secret_value() == "true":
                raise ValueError("spark.speculation: a task that writes files must not run twice at a time")
        return given

    @property
    def connect(self) -> bool:
        return self.master.startswith("sc://")

    @property
    def local(self) -> bool:
        return self.master.startswith("local")

    @property
    def address(self) -> str:
        """The master, without the token that a Connect address may contain."""
        return self.master.partition("/;")[0]

    def secrets(self) -> Iterator[str]:
        for name, value in self.options.items():
            if is_secret_name(name):
                yield value.get_secret_value()
            yield from secrets_in_url(value.get_secret_value())
        for part in self.master.split(";")[1:]:
            name, _, text = part.partition("=")
            if name == "token":
                yield text
