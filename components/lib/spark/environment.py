"""The environment variables of a session's JVM and of the Python workers below it.

They get what they need, not all that this process has: other code may run there (libraries, jars, a cluster's shell
hooks), and the environment of the daemon holds passwords and tokens.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

from astha.redaction import is_secret_name
from astha.subscribers.context import LakeSettings
from components.lib.spark.settings import SparkSettings

PASSED_ON = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "LC_*", "TZ", "TMPDIR", "HOSTNAME"),
    *("JAVA_HOME", "SPARK_*", "PYSPARK_*", "HADOOP_*", "HADOOP_TOKEN_FILE_LOCATION", "YARN_*"),
    *("KUBECONFIG", "KUBERNETES_*", "KRB5*"),
    *("PYTHON*", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "SSL_CERT_FILE", "SSL_CERT_DIR"),
    *("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MALLOC_*", "ARROW_*"),
)
"""Names and patterns. A name that sounds like a secret is passed on only if it stands here in full."""

AWS = "AWS_*"


def jvm_environment(settings: SparkSettings, given: Mapping[str, str] | None = None) -> dict[str, str]:
    given = os.environ if given is None else given
    return {
        name: value
        for name, value in given.items()
        if name in PASSED_ON
        or (_matches(name, PASSED_ON) and not is_secret_name(name))
        or _matches(name, settings.environment)
    }


def with_lake_credentials(settings: SparkSettings, lake: LakeSettings) -> SparkSettings:
    """Adds `AWS_*` if the lake has no keys in its settings: workers then take them from their environment."""
    if lake.s3.access_key is not None:
        return settings
    return settings.model_copy(update={"environment": (*settings.environment, AWS)})


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
