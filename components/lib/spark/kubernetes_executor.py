"""An executor in a pod of Kubernetes: ``python -m components.lib.spark.kubernetes_executor``.

Spark describes an executor by environment variables and leaves its start to the image. This starts it from the PySpark
of the same Python, so that every image with this package and Java is one for executors, without Spark's own scripts.
The process becomes the JVM.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from components.lib.spark.errors import SessionProblem
from components.lib.spark.jvm import find_java
from components.lib.spark.pyspark_internals import spark_home

_BACKEND = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
_JAVA_OPTION = "SPARK_JAVA_OPT_"
_ARGUMENTS = {
    "--driver-url": "SPARK_DRIVER_URL",
    "--executor-id": "SPARK_EXECUTOR_ID",
    "--cores": "SPARK_EXECUTOR_CORES",
    "--app-id": "SPARK_APPLICATION_ID",
    "--hostname": "SPARK_EXECUTOR_POD_IP",
    "--resourceProfileId": "SPARK_RESOURCE_PROFILE_ID",
    "--podName": "SPARK_EXECUTOR_POD_NAME",
}


def executor_command(java: str, home: Path, given: Mapping[str, str]) -> list[str]:
    """Returns the JVM's command line. Raises `SessionProblem` if the variables are not those of an executor's pod."""
    missing = [name for name in (*_ARGUMENTS.values(), "SPARK_EXECUTOR_MEMORY") if not given.get(name)]
    if missing:
        raise SessionProblem(f"not the pod of a Spark executor: {', '.join(missing)} not set")
    numbers = sorted(int(name.removeprefix(_JAVA_OPTION)) for name in given if name.startswith(_JAVA_OPTION))
    class_path = [*filter(None, [given.get("SPARK_CLASSPATH")]), f"{home}/jars/*"]
    memory = given["SPARK_EXECUTOR_MEMORY"]
    return [
        java,
        *(given[f"{_JAVA_OPTION}{number}"] for number in numbers),
        f"-Xms{memory}",
        f"-Xmx{memory}",
        "-cp",
        os.pathsep.join(class_path),
        _BACKEND,
        *(part for option, name in _ARGUMENTS.items() for part in (option, given[name])),
    ]


def main() -> None:
    home = spark_home()
    try:
        command = executor_command(find_java(), home, os.environ)
    except (SessionProblem, ValueError) as error:
        sys.exit(f"executor: {error}")
    os.execve(command[0], command, {**os.environ, "SPARK_HOME": str(home)})  # noqa: S606  (no shell is wanted)


if __name__ == "__main__":
    main()
