"""How the compactor comes to its executor: the kernel, on the session that the settings describe."""

from __future__ import annotations

from functools import partial

from astha.redaction import Concealment
from astha.subscribers.context import LakeSettings
from components.compactor.merge import merge
from components.compactor.settings import CompactorSettings
from components.compactor.spark.executor import SparkExecutor, open_session
from components.lib.spark.environment import with_lake


def open_executor(settings: CompactorSettings, lake: LakeSettings, conceal: Concealment) -> SparkExecutor:
    """Opens nothing until the first merge. Secrets of the session are added to ``conceal``."""
    conceal.add(*settings.spark.secrets())
    return SparkExecutor(with_lake(settings.spark, lake), merge, partial(open_session, conceal=conceal))
