"""How the compactor comes to its executor: the kernel, on the session that the settings describe."""

from __future__ import annotations

from functools import partial

from astha.redaction import Redactor
from astha.subscribers.context import LakeSettings
from components.compactor.merge import merge
from components.compactor.settings import CompactorSettings
from components.compactor.spark.environment import with_lake
from components.compactor.spark.executor import SparkExecutor, open_session


def open_executor(settings: CompactorSettings, lake: LakeSettings, redact: Redactor) -> SparkExecutor:
    """Opens nothing until the first merge. Secrets of the session are added to ``redact``."""
    redact.add(*settings.spark.secrets())
    return SparkExecutor(with_lake(settings.spark, lake), merge, partial(open_session, redact=redact))
