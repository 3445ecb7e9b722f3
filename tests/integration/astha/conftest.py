from __future__ import annotations

from tests.fixtures.sources import raw, registry_path, registry_template, registry_url, source_of, writer

__all__ = ["raw", "registry_path", "registry_template", "registry_url", "source_of", "writer"]
