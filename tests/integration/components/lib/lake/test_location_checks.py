"""The `warehouse` check of `astha check`."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import SecretStr

from astha.preflight import Verdict, preflight
from astha.settings import load_settings
from astha.subscribers import LakeSettings, S3Settings
from components.lib.lake.storage.location_checks import check_warehouse
from tests.lake import files_below
from tests.servers.s3 import S3Server


@pytest.mark.parametrize(
    ("warehouse", "verdict"), [("warehouse", Verdict.OK), ("/proc/nope", Verdict.PROBLEM), ("file", Verdict.PROBLEM)]
)
async def test_the_check_names_the_warehouse(url: str, tmp_path: Path, warehouse: str, verdict: Verdict) -> None:
    (tmp_path / "file").write_text("in the way")
    place = tmp_path / warehouse
    subscriptions = tmp_path / "subscriptions.yaml"
    tables = "[table_metadata, table_files, table_delete_files, iceberg_commits]"
    subscriptions.write_text(f"components: {{iceberg_updater: {{tables: {tables}}}}}\n")
    settings = load_settings(
        flags={
            "registry": {"url": url},
            "subscriptions": str(subscriptions),
            "server": {"port": 0},
            "lake": {"warehouse": str(place)},
        }
    )
    findings = {finding.check: finding for finding in await preflight(settings)}
    found = findings["warehouse"]
    assert found.verdict is verdict, found
    assert str(place) in found.detail
    assert (found.remedy is None) == (verdict is Verdict.OK)
    assert not any("probe" in path for path in files_below(tmp_path))


async def test_the_check_on_s3(s3_lake: LakeSettings, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (await check_warehouse(s3_lake)).remedy is None
    gone = await check_warehouse(LakeSettings(warehouse="s3://no-such-bucket/w", s3=s3_server.settings))
    assert gone.remedy is not None
    assert "bucket" in gone.detail
    monkeypatch.setattr("components.lib.lake.storage.location_checks._CHECK_TIMEOUT_S", 1.0)
    s3 = S3Settings(
        endpoint="http://127.0.0.1:9", access_key=SecretStr("a"), secret_key=SecretStr("b"), allow_http=True
    )
    silent = await check_warehouse(LakeSettings(warehouse="s3://bucket/w", s3=s3))
    assert silent.remedy is not None
    assert "reachable" in silent.detail
