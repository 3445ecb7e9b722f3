"""Settings of a storage manager."""

from __future__ import annotations

import os

from pydantic import BaseModel, ConfigDict, Field


class StorageSettings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    sync: bool = Field(False, description="Whether an insert waits until its files are registered.")
    fill_missing: bool = Field(False, description="Whether a missing optional column is filled with nulls.")
    target_file_bytes: int = Field(128 << 20, gt=0, description="Estimated size at which a file is closed.")
    rotate_after_s: float = Field(60.0, gt=0, description="Longest time that rows of a stream stay in memory.")
    buffer_bytes: int = Field(512 << 20, gt=0, description="Bytes of rows in memory per insert or stream.")
    parallel_files: int = Field(
        min(4, os.cpu_count() or 1), gt=0, description="Files that are encoded and uploaded concurrently."
    )
    renew_every_s: float = Field(300.0, gt=0, description="Interval at which upload intents are renewed.")
    schema_age_s: float = Field(1.0, ge=0, description="How long a schema is cached before it is read again.")
    names_ahead: int = Field(256, ge=0, description="File names whose intents are recorded ahead, for small inserts.")
