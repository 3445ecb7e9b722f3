"""The settings of a writer, with their defaults."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from components.lib.streams.format import MAX_BODY_BYTES

_MOST_BYTES = MAX_BODY_BYTES // 4 * 3  # columns of offsets and bitmaps come on top: at most a third more


class WriterSettings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    location: str | None = Field(None, description="Where objects go; none: `streams` in the lake's warehouse.")
    window_s: float = Field(0.1, ge=0, description="Longest time that records gather.")
    enough_appends: int = Field(
        25, gt=0, description="So many appends, or a block's bytes, are worth an object: they don't wait for more."
    )
    linger_s: float = Field(
        0.005,
        ge=0,
        description="What is not enough waits for more while one append follows the other within this time.",
    )
    object_bytes: int = Field(64 << 20, gt=0, description="Size at which an object is closed, before compression.")
    object_segments: int = Field(
        50, gt=0, description="Partitions in an object at most: so many rows are registered in one transaction."
    )
    block_bytes: int = Field(512 << 10, gt=0, le=_MOST_BYTES, description="Size of a block before compression.")
    append_bytes: int = Field(32 << 20, gt=0, le=_MOST_BYTES, description="Largest append.")
    buffer_bytes: int = Field(256 << 20, gt=0, description="Records in memory at most; appends wait for room.")
    parallel_objects: int = Field(8, gt=0, description="Objects that are uploaded and registered at the same time.")
    parallel_registrations: int = Field(
        2, gt=0, description="Registrations at the same time: more of them only make each other slower."
    )
    names_ahead: int = Field(64, gt=0, description="Object names whose intents are recorded in one call.")
    renew_every_s: float = Field(300.0, gt=0, description="Time between renewals of the intents of open objects.")
    register_for_s: float = Field(
        30.0, ge=0, description="How long a registration is repeated while the registry does not answer."
    )
    close_after_s: float = Field(60.0, ge=0, description="How long closing waits for what is on its way.")
