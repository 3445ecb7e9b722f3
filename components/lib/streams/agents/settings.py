"""The settings of an agent, with their defaults."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class AgentSettings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    address: str = Field("local", min_length=1, description="Where others can reach this process.")
    group: str = Field("", description="Agents that share the partitions among them.")
    zone: str = Field("", description="Where it runs.")
    lease_s: float = Field(30.0, gt=0, description="How long a lease holds without a renewal.")
    renew_every_s: float = Field(10.0, gt=0, description="Time between renewals of leases, and between heartbeats.")
    topics: list[str] | None = Field(
        None, description="Topics whose partitions are shared among the group's agents; none: only what is asked for."
    )
    drain_s: float = Field(5.0, ge=0, description="How long a partition that moves waits for what is being written.")
