from __future__ import annotations

import pytest
from pydantic import SecretStr, ValidationError

from astha.subscribers.context import LakeSettings, S3Settings
from components.lib.spark.environment import jvm_environment, with_lake_credentials
from components.lib.spark.settings import SparkSettings

MACHINE = {
    "PATH": "/bin", "LC_ALL": "C", "JAVA_HOME": "/java", "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": "/here",
    "SPARK_AUTH_TOKEN": "hush", "PYSPARK_GATEWAY_SECRET": "hush", "HADOOP_TOKEN_FILE_LOCATION": "/a/path",
    "ASTHA_REGISTRY": "postgresql://u:hush@h/d", "ASTHA_SERVER__TOKEN": "hush", "GITHUB_TOKEN": "hush",
    "PGPASSWORD": "hush", "HTTPS_PROXY": "http://u:hush@proxy", "AWS_SECRET_ACCESS_KEY": "hush", "AWS_REGION": "x",
}  # fmt: skip


def test_only_needed_variables_are_passed_on() -> None:
    passed = jvm_environment(SparkSettings(), MACHINE)
    needed = {"PATH", "LC_ALL", "JAVA_HOME", "SPARK_LOCAL_IP", "PYTHONPATH", "HADOOP_TOKEN_FILE_LOCATION"}
    assert passed == {name: MACHINE[name] for name in needed}


def test_named_variables_are_passed_on() -> None:
    settings = SparkSettings(environment=("HTTPS_PROXY", "SPARK_AUTH_*"))
    more = jvm_environment(settings, MACHINE).keys() - jvm_environment(SparkSettings(), MACHINE).keys()
    assert more == {"HTTPS_PROXY", "SPARK_AUTH_TOKEN"}


@pytest.mark.parametrize("name", ["", "A=B", "*", "A*B"])
def test_invalid_variable_names_are_refused(name: str) -> None:
    with pytest.raises(ValidationError):
        SparkSettings(environment=(name,))


def test_aws_variables_are_passed_on_only_if_the_lake_has_no_keys() -> None:
    own = LakeSettings(s3=S3Settings(access_key=SecretStr("a"), secret_key=SecretStr("b")))
    assert not any(
        name.startswith("AWS_") for name in jvm_environment(with_lake_credentials(SparkSettings(), own), MACHINE)
    )
    none = jvm_environment(with_lake_credentials(SparkSettings(), LakeSettings()), MACHINE)
    assert {name for name in none if name.startswith("AWS_")} == {"AWS_SECRET_ACCESS_KEY", "AWS_REGION"}
