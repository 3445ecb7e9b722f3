from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from components.lib.spark.settings import SparkSettings


@pytest.mark.parametrize(
    "master",
    [
        "local",
        "local[*]",
        "local[2,3]",
        "yarn",
        "spark://one:7077,two:7077",
        "k8s://https://api:6443",
        "sc://host:15002",
    ],
)
def test_masters(master: str) -> None:
    assert SparkSettings(master=master).master == master


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"master": "mesos://host:5050"}, "is not a Spark master: use local"),
        ({"master": "spark://"}, "is not a Spark master"),
        ({"options": {"executor.memory": "4g"}}, "their names begin with 'spark"),
        ({"options": {"spark.master": "yarn"}}, "spark.master is set by 'master'"),
        ({"options": {"spark.speculation": True}}, "must not run twice at a time"),
        ({"cores": 2}, "Extra inputs are not permitted"),
    ],
)
def test_invalid_settings(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        SparkSettings.model_validate(given)


def test_options_are_written_as_spark_reads_them() -> None:
    settings = SparkSettings.model_validate({"options": {"spark.a": True, "spark.b": 4, "spark.c": "4g"}})
    assert [value.get_secret_value() for value in settings.options.values()] == ["true", "4", "4g"]


def test_secrets_are_registered_and_not_shown() -> None:
    settings = SparkSettings.model_validate(
        {
            "master": "sc://host:443/;use_ssl=true;token=abcdef",
            "options": {"spark.hadoop.fs.s3a.secret.key": "hidden", "spark.executor.memory": "4g"},
        }
    )
    assert set(settings.secrets()) == {"hidden", "abcdef"}
    assert settings.address == "sc://host:443"
    assert "hidden" not in repr(settings)
