"""What subscriptions.yaml may say under `settings: spark:` of the compactor."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, field_validator

from astha.redaction import is_secret_name, secrets_in_url

Seconds = Annotated[float, Field(gt=0)]

_MASTERS = "local[N], spark://HOST:PORT, yarn, k8s://URL, or sc://HOST:PORT for Spark Connect"
_OURS = {
    "spark.master": "master",
    "spark.remote": "master",
    "spark.app.name": "name",
    "spark.driver.memory": "memory",
    "spark.driver.host": "host",
    "spark.pyspark.python": "python",
}


def _written(value: object) -> object:
    """YAML's booleans and numbers as Spark writes them."""
    return str(value).lower() if isinstance(value, bool | int | float) else value


class SparkSettings(BaseModel):
    """Where merges run. The defaults need Java 17 on this machine, and nothing else."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    master: str = Field("local[2]", description=f"Where tasks run: {_MASTERS}.")
    options: dict[str, Annotated[SecretStr, BeforeValidator(_written)]] = Field(
        {}, description="Settings of Spark by name, such as spark.executor.memory: 4g. They win over those chosen here."
    )
    environment: tuple[Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*\*?$")], ...] = Field(
        (),
        description="Names of further environment variables for the JVM and its workers, such as HTTPS_PROXY; a name"
        " may end in *. They get what Java, Spark and Python need, and no variable of this process beyond that.",
    )
    name: str = Field("astha-compactor", description="The application's name in Spark.")
    memory: str = Field("1g", description="Heap of the JVM in which the session lives. Merges happen outside of it.")
    python: str | None = Field(None, description="The workers' Python; the one that runs this, if not given.")
    host: str | None = Field(
        None, description="Address at which workers reach this process; that of the way to the master, if not given."
    )
    port: Annotated[int, Field(ge=0, le=65535)] = Field(
        0, description="Port at which workers report to this process; 0 for a free one."
    )
    parallel: Annotated[int, Field(ge=1)] = Field(16, description="Tasks handed to Spark at once; more wait here.")
    start_s: Seconds = Field(120.0, description="How long a session may take to start.")
    answer_s: Seconds = Field(30.0, description="How long a session may take to answer before it counts as dead.")
    stop_s: Seconds = Field(5.0, description="How long a cancelled task may take to end what it is writing.")
    log_level: Literal["debug", "info", "warn", "error"] = Field("warn", description="From which level Spark is heard.")

    @field_validator("master")
    @classmethod
    def _known(cls, given: str) -> str:
        if (given.startswith("local[") and given.endswith("]")) or given in ("local", "yarn"):
            return given
        if given.startswith(("spark://", "sc://", "k8s://")) and urlsplit(given).netloc:
            return given
        raise ValueError(f"{given!r} is no master of Spark: write {_MASTERS}")

    @field_validator("options")
    @classmethod
    def _allowed(cls, given: dict[str, SecretStr]) -> dict[str, SecretStr]:
        for name, value in given.items():
            if not name.startswith("spark."):
                raise ValueError(f"{name!r} is no setting of Spark: their names begin with spark.")
            if name in _OURS:
                raise ValueError(f"{name} is set by {_OURS[name]!r}, beside 'options'")
            if name == "spark.speculation" and value.get_secret_value() == "true":
                raise ValueError("spark.speculation: a task that writes files must not run twice at once")
        return given

    @property
    def connect(self) -> bool:
        return self.master.startswith("sc://")

    @property
    def local(self) -> bool:
        return self.master.startswith("local")

    @property
    def place(self) -> str:
        """The master without the token that a Connect address may carry."""
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
