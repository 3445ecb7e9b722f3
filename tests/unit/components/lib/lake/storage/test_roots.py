from __future__ import annotations

from pathlib import Path

import pytest

from components.lib.lake.storage.roots import Roots

S3 = Roots(["s3://lake/warehouse", "s3://whole-bucket"])


@pytest.mark.parametrize(
    "uri", ["s3://lake/warehouse/t/f.parquet", "s3://lake/warehouse/f", "s3://whole-bucket/f", "s3://whole-bucket/a/b"]
)
def test_paths_below_a_root_may_be_deleted(uri: str) -> None:
    assert S3.refusal(uri) is None


@pytest.mark.parametrize(
    "uri",
    [
        "s3://lake/warehouse",  # a root itself
        "s3://lake/warehouse2/f",
        "s3://lake/other/f",
        "s3://other/warehouse/f",
        "s3://lake/warehouse/../other/f",
        "s3://lake/warehouse/%2e%2e/other/f",
        "s3://lake/warehouse/%252E%252e/other/f",
        "s3://lake/warehouse/..%2fother/f",
        "s3://lake/warehouse/..\\other",
        "s3://lake/warehouse/./f",
        "file:///lake/warehouse/f",
        "s3a://other/warehouse/f",
        "/lake/warehouse/f",
        "",
    ],
)
def test_paths_elsewhere_are_refused(uri: str) -> None:
    assert S3.refusal(uri) is not None


def test_harmless_escapes_are_part_of_a_name() -> None:
    """Other engines write such partition directories, and their files may have been adopted."""
    assert S3.refusal("s3://lake/warehouse/t/at=2024-01-01%2000%3A00/f.parquet") is None


def test_symbolic_links_are_resolved(tmp_path: Path) -> None:
    warehouse, outside = tmp_path / "warehouse", tmp_path / "outside"
    (warehouse / "t").mkdir(parents=True)
    outside.mkdir()
    (warehouse / "out").symlink_to(outside)
    (warehouse / "t" / "link").symlink_to(outside / "precious")
    (outside / "in").symlink_to(warehouse)
    roots = Roots([f"file://{warehouse}"])
    assert roots.refusal(f"file://{warehouse}/t/f") is None
    assert roots.refusal(f"file://{warehouse}/not-yet/there/f") is None
    assert roots.refusal(f"file://{warehouse}/out/f") is not None
    assert roots.refusal(f"file://{outside}/in/t/f") is None, "the same place under another name"
    assert roots.refusal(f"file://{warehouse}/t/link") is None, "only the link itself would go"
    assert Roots([f"file://{outside}/in"]).refusal(f"file://{warehouse}/t/f") is None


def test_the_whole_disk_and_invalid_locations_are_not_roots() -> None:
    for root in ("file:///", "nonsense", ""):
        assert Roots([root]).refusal("file:///etc/passwd") is not None
