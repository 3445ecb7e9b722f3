"""Which environment variables the JVM of a session, and the Python workers below it, get.

A list of what they need, not everything that this process has: other users' code may run there (libraries, jars, a
cluster's shell hooks), and the environment of the daemon holds passwords and tokens.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

from astha.redaction import is_secret_name
from astha.subscribers.context import LakeSettings
from components.lib.spark.settings import SparkSettings

NEEDED = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "LC_*", "TZ", "TMPDIR", "HOSTNAME"),
    *("JAVA_HOME", "SPARK_*", "PYSPARK_*", "HADOOP_*", "HADOOP_TOKEN_FILE_LOCATION", "YARN_*"),
    *("KUBECONFIG", "KUBERNETES_*", "KRB5*"),
    *("PYTHON*", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "SSL_CERT_FILE", "SSL_CERT_DIR"),
    *("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MALLOC_*", "ARROW_*"),
)
"""Names, and beginnings of names. One that sounds like a secret is passed only if it is named in full."""

AWS = "AWS_*"


def environment_for(settings: SparkSettings, given: Mapping[str, str] | None = None) -> dict[str, str]:
    given = os.environ if given is None else given
    return {
        name: value
        for name, value in given.items()
        if name in NEEDED
        or (_matches(name, NEEDED) and not is_secret_name(name))
        or _matches(name, settings.environment)
    }


def with_lake(settings: SparkSettings, lake: LakeSettings) -> SparkSettings:
    """Workers that get no keys with their task need those of the machine's environment to reach S3."""
    if lake.s3.access_key is not None:
        return settings
    return settings.model_copy(update={"environment": (*settings.environment, AWS)})


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
