"""The command line of an executor in a pod."""

from __future__ import annotations

from pathlib import Path

import pytest

from components.lib.spark.errors import SessionProblem
from components.lib.spark.kubernetes_executor import executor_command

GIVEN = {
    "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@driver:27842",
    "SPARK_EXECUTOR_ID": "1",
    "SPARK_EXECUTOR_CORES": "2",
    "SPARK_EXECUTOR_MEMORY": "1024m",
    "SPARK_APPLICATION_ID": "spark-1",
    "SPARK_EXECUTOR_POD_IP": "10.0.0.9",
    "SPARK_EXECUTOR_POD_NAME": "astha-compactor-exec-1",
    "SPARK_RESOURCE_PROFILE_ID": "0",
}


def test_the_variables_of_a_pod_become_arguments() -> None:
    command = executor_command("/usr/bin/java", Path("/spark"), GIVEN)
    assert command[:5] == ["/usr/bin/java", "-Xms1024m", "-Xmx1024m", "-cp", "/spark/jars/*"]
    arguments = dict(zip(command[6::2], command[7::2], strict=True))
    assert arguments["--driver-url"] == GIVEN["SPARK_DRIVER_URL"]
    assert arguments["--hostname"] == "10.0.0.9"
    assert arguments["--podName"] == "astha-compactor-exec-1"
    assert len(arguments) == 7


def test_java_options_keep_their_order() -> None:
    options = {f"SPARK_JAVA_OPT_{number}": f"-Dspark.option={number}" for number in range(12)}
    command = executor_command("java", Path("/spark"), {**GIVEN, **options})
    assert command[1:13] == [f"-Dspark.option={number}" for number in range(12)]


def test_the_class_path_of_the_session_comes_first() -> None:
    command = executor_command("java", Path("/spark"), {**GIVEN, "SPARK_CLASSPATH": "/more/a.jar"})
    assert "/more/a.jar:/spark/jars/*" in command


@pytest.mark.parametrize("name", GIVEN)
def test_anything_but_the_pod_of_an_executor_is_refused(name: str) -> None:
    with pytest.raises(SessionProblem, match=name):
        executor_command("java", Path("/spark"), {**GIVEN, name: ""})
