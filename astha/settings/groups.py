"""The settings of the daemon's stages, apart from the stages: reading settings imports no stage."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator


class SettingsGroup(BaseModel):
    """An error about a setting never shows its value, which may be a secret."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class PostgresSourceSettings(SettingsGroup):
    slot: str = Field(
        "astha",
        pattern="^[a-z0-9_]{1,63}$",
        description="Name of the replication slot. The default of a group other than `astha` is `astha_GROUP`.",
    )
    publication: str = Field("astha", description="Name of the publication; migrations create it.")
    schema_name: str = Field("public", description="Schema of the registry's tables.")
    status_interval_s: float = Field(5.0, gt=0, description="Time between status updates to the server.")
    slot_check_interval_s: float = Field(5.0, gt=0, description="Time between checks of the slot's wal_status.")
    silence_limit_s: float = Field(60.0, gt=0, description="Reconnect if the server sends nothing for this long.")
    connect_timeout_s: float = Field(30.0, gt=0, description="Time to connect, check and start the stream.")
    reconnect_initial_s: float = Field(0.2, gt=0, description="First wait before reconnecting; doubles.")
    reconnect_max_s: float = Field(15.0, gt=0, description="Longest wait before reconnecting.")
    resolved_interval_s: float = Field(
        0.1, gt=0, description="On CockroachDB, time between resolved marks, which complete transactions."
    )
    transaction_limit_events: int = Field(100_000, gt=0, description="Larger transactions become refreshes.")
    transaction_limit_bytes: int = Field(64 * 1024 * 1024, gt=0, description="Larger transactions become refreshes.")


class TailSettings(SettingsGroup):
    trim_every_s: float = Field(0.5, gt=0, description="Time between deletions of acknowledged rows.")
    inotify: bool = Field(
        True, description="Use inotify to notice commits; switch it off on file systems that do not support it."
    )
    poll_s: float = Field(
        0.1,
        gt=0,
        le=60,
        description="On DynamoDB, the longest time between two looks at the commit number of an idle registry; each "
        "costs one read unit. Shorter after a commit.",
    )


class LeaseSettings(SettingsGroup):
    ttl_s: float = Field(3.0, gt=0.2, description="Time until a standby takes over from a leader that has died.")
    file_lock: bool = Field(
        True,
        description="Hold a file lock while leading: a successor on the same machine takes over at once from a leader "
        "whose process was killed, instead of after the lease.",
    )
    directory: Path | None = Field(
        None,
        description="Directory of the file lock, on this machine; it must survive the daemon. Empty: one for this "
        "registry in `$RUNTIME_DIRECTORY`, `$XDG_RUNTIME_DIR/astha` or the temporary directory.",
    )


class ClockSettings(SettingsGroup):
    tolerance_s: float = Field(
        60.0,
        gt=0,
        description="The wall clock has jumped if it moves by more at once, or differs from the database's by more.",
    )
    settle_s: float = Field(
        900.0, ge=0, description="After a jump, time that the new time must hold before anything is deleted by age."
    )


class DaemonSettings(SettingsGroup):
    components: tuple[str, ...] | None = Field(
        None,
        min_length=1,
        description="The components of the subscriptions file that this daemon runs; all by default.",
    )
    ledger_interval_s: float = Field(0.5, gt=0, description="Time between writes of the ledger.")
    shutdown_timeout_s: float = Field(20.0, gt=0, description="Time to deliver queued events when asked to stop.")
    retained_wal_budget_bytes: int = Field(
        1024**3, gt=0, description="WAL that the server may retain for a slow component."
    )
    loop_block_limit_s: float = Field(
        1.0, gt=0, description="Open the circuit of a component that blocks the event loop for longer."
    )
    on_bad_component: Literal["run_others", "refuse"] = Field(
        "run_others",
        description="If a component's code can't be loaded, run the others (run_others) or do not start (refuse).",
    )

    @field_validator("components", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        """Splits comma-separated names from a command line."""
        return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


class LogSettings(SettingsGroup):
    level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Lowest level that is logged; read again on SIGHUP."
    )
    format: Literal["console", "json"] = Field("console", description="Lines for people, or JSON for machines.")
