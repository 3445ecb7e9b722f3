from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from astha.subscribers import LakeSettings, S3Settings
from components.lib.lake.storage.objects import ObjectMissing, Objects
from components.metadata_orchestrator.validation import TableValidator, invalid_versions, probe_of
from registry.json_text import EMPTY_LIST, EMPTY_OBJECT, JsonText, to_json_text
from registry.models import TableMetadata

ID = {"id": 1, "name": "id", "required": True, "type": "long"}


def version(number: int, *fields: dict[str, object], schema: str | None = None) -> TableMetadata:
    document = JsonText(schema) if schema is not None else to_json_text({"type": "struct", "fields": list(fields)})
    return TableMetadata(
        number, 1, number, document, "parquet", EMPTY_OBJECT, "parquet", "zstd", EMPTY_LIST, EMPTY_LIST, EMPTY_OBJECT,
        0, 0, 0,
    )  # fmt: skip


@pytest.fixture
def validator() -> TableValidator:
    return TableValidator(Objects(LakeSettings()))


# Locations


async def test_a_local_directory_is_created(validator: TableValidator, tmp_path: Path) -> None:
    directory = tmp_path / "db" / "t"
    assert await validator.check_location(f"file://{directory}") is None
    assert directory.is_dir()
    assert await validator.check_location(f"file://{directory}") is None


async def test_a_file_in_place_of_the_directory_is_a_problem(validator: TableValidator, tmp_path: Path) -> None:
    (tmp_path / "db").write_text("")
    problem = await validator.check_location(f"file://{tmp_path}/db/t")
    assert problem is not None
    assert f"{tmp_path}/db/t can't be created" in problem


async def test_an_invalid_location_is_a_problem(validator: TableValidator) -> None:
    problem = await validator.check_location("/var/lake/t")
    assert problem is not None
    assert "is not a location" in problem


class Bucketless(Objects):
    async def get(self, uri: str) -> bytes:
        raise ObjectMissing(f"{uri} does not exist") from OSError("404: <Code>NoSuchBucket</Code>")


class Bucket(Objects):
    async def get(self, uri: str) -> bytes:
        raise ObjectMissing(f"{uri} does not exist") from OSError("404: <Code>NoSuchKey</Code>")


async def test_a_missing_bucket_is_a_problem() -> None:
    assert await TableValidator(Bucket(LakeSettings())).check_location("s3://lake/t") is None
    problem = await TableValidator(Bucketless(LakeSettings())).check_location("s3://lake/t")
    assert problem == "s3://lake/t: there is no bucket 'lake': create it"


async def test_storage_that_does_not_answer_is_a_problem() -> None:
    s3 = S3Settings(endpoint="http://127.0.0.1:1", allow_http=True, access_key="a", secret_key="b")
    objects = Objects(LakeSettings(s3=s3), timeout_s=0.2, retry_s=0.2)
    problem = await TableValidator(objects).check_location("s3://lake/t")
    assert problem is not None
    assert "s3://lake/t" in problem


def test_tables_of_one_bucket_share_a_probe() -> None:
    assert probe_of("s3://lake/a") == probe_of("s3://lake/b") != probe_of("s3://other/a")
    assert probe_of("file:///a") != probe_of("file:///b")
    assert probe_of("nonsense") == "nonsense"


# Versions


def test_valid_versions() -> None:
    added = {"id": 2, "name": "n", "required": False, "type": "string"}
    renamed = {**added, "name": "m"}
    assert invalid_versions([version(3, ID, renamed), version(1, ID), version(2, ID, added)]) == {}


def test_an_invalid_version_is_named_and_skipped_for_the_next_comparison() -> None:
    narrowed = {**ID, "type": "boolean"}
    bad = invalid_versions([version(1, ID), version(2, narrowed), version(3, ID)])
    assert list(bad) == [2]
    assert "column id" in bad[2]


def test_a_version_of_another_engine_follows_icebergs_rules() -> None:
    nanoseconds = {"id": 2, "name": "n", "required": False, "type": "timestamp_ns"}
    other_id = {**ID, "id": 9}
    versions = [version(1, ID), version(2, ID, nanoseconds), version(3, other_id)]
    assert list(invalid_versions(versions)) == [2, 3]
    adopted = [msgspec.structs.replace(row, storage_engine="iceberg") for row in versions]
    assert invalid_versions(adopted) == {}


@pytest.mark.parametrize("schema", ["{}", "[]", '"text"', '{"type":"struct","fields":[{"id":1}]}', "not JSON"])
def test_an_unreadable_schema_is_a_problem_of_that_version(schema: str) -> None:
    bad = invalid_versions([version(1, ID), version(2, schema=schema), version(3, ID)])
    assert list(bad) == [2]
