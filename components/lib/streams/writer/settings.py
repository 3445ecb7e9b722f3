"""The settings of a writer, and the statistics by which to judge them."""

from __future__ import annotations

from collections import deque

import msgspec
from pydantic import BaseModel, ConfigDict, Field

from components.lib.streams.format import MAX_BODY_BYTES

_REMEMBERED = 10_000
_MAX_BYTES = MAX_BODY_BYTES // 4 * 3  # columns of offsets and bitmaps add at most a third


class WriterSettings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    location: str | None = Field(None, description="Location of objects; null: lake.streams.")
    window_s: float = Field(0.1, ge=0, description="Longest time that a window stays open.")
    target_appends: int = Field(
        25,
        gt=0,
        description="A window of so many appends, or of `block_bytes`, is uploaded when no upload is in flight.",
    )
    linger_s: float = Field(
        0.005,
        ge=0,
        description="A smaller window is uploaded when no append came for this time.",
    )
    object_bytes: int = Field(
        8 << 20,
        gt=0,
        description="Size before compression at which a window is uploaded at once, beside uploads in flight.",
    )
    max_object_segments: int = Field(
        50, gt=0, description="Most partitions per object, hence rows per registering transaction."
    )
    block_bytes: int = Field(512 << 10, gt=0, le=_MAX_BYTES, description="Size of a block before compression.")
    max_append_bytes: int = Field(32 << 20, gt=0, le=_MAX_BYTES, description="Largest append.")
    buffer_bytes: int = Field(256 << 20, gt=0, description="Most bytes of records in memory; further appends wait.")
    parallel_uploads: int = Field(8, gt=0, description="Most objects that are uploaded and registered concurrently.")
    parallel_registrations: int = Field(
        2, gt=0, description="Most concurrent registrations; more of them slow each other down."
    )
    preallocated_names: int = Field(64, gt=0, description="Most object names whose intents are recorded in one call.")
    renew_every_s: float = Field(300.0, gt=0, description="Interval of renewals of upload intents.")
    registration_timeout_s: float = Field(
        30.0, ge=0, description="How long a registration is retried while the registry is unavailable."
    )
    close_timeout_s: float = Field(60.0, ge=0, description="How long closing waits for accepted appends.")


class WriterStatistics(msgspec.Struct):
    """Since the writer was opened."""

    appends: int = 0  # successful
    records: int = 0
    failures: int = 0  # appends that raised an error
    duplicates: int = 0  # repeated appends
    windows: int = 0
    objects: int = 0  # registered
    segments: int = 0
    stored_bytes: int = 0
    retries: int = 0  # of calls to the registry
    buffered_bytes: int = 0  # now
    register_s: deque[float] = msgspec.field(default_factory=lambda: deque(maxlen=_REMEMBERED))  # the last ones
    upload_s: deque[float] = msgspec.field(default_factory=lambda: deque(maxlen=_REMEMBERED))
