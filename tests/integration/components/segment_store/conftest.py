"""The harness of the streams library, for the component's tests."""

from __future__ import annotations

from tests.integration.components.lib.streams.conftest import harness

__all__ = ["harness"]
