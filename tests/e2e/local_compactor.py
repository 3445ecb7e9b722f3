"""The compactor with its merges in the daemon's own process: a Spark session would hardly have started before the next
death. `use: tests.e2e.local_compactor:create`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from astha.subscribers import Surroundings
from components.compactor.merge import merge
from components.compactor.settings import CompactorSettings
from components.compactor.subscriber import Compactor
from components.compactor.work.local import LocalExecutor


def create(settings: Mapping[str, Any], surroundings: Surroundings) -> Compactor:
    chosen = CompactorSettings.model_validate(dict(settings))
    return Compactor(chosen, surroundings, lambda: LocalExecutor(merge))
