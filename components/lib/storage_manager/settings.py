"""The numbers of a storage manager."""

from __future__ import annotations

import os

from pydantic import BaseModel, ConfigDict, Field


class StorageSettings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    sync: bool = Field(False, description="Whether an insert waits until its files are registered.")
    fill_missing: bool = Field(False, description="Whether an optional column that is not given is null.")
    target_file_bytes: int = Field(128 << 20, gt=0, description="Size at which a file is closed, by estimate.")
    rotate_after_s: float = Field(60.0, gt=0, description="Longest time that rows of a stream wait for their file.")
    buffer_bytes: int = Field(512 << 20, gt=0, description="Rows that may wait in memory, of one insert or stream.")
    parallel_files: int = Field(
        min(4, os.cpu_count() or 1), gt=0, description="Files that are encoded and uploaded at the same time."
    )
    renew_every_s: float = Field(300.0, gt=0, description="Time between renewals of the intents of open files.")
    schema_age_s: float = Field(1.0, ge=0, description="How long a schema is trusted before it is read again.")
    names_ahead: int = Field(256, ge=0, description="File names whose intents are recorded ahead, for small inserts.")
