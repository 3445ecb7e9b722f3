"""Iceberg's REST Compatibility Kit against `astha catalog`, on both databases: 20 s each, of `make test`.

Every test that fails is named below, with the reason. docs/parts/catalog.md has the same list.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from registry.contract import MetadataStore
from tests.servers.catalog_process import CatalogProcess
from tests.servers.compatibility_kit import run_kit

KNOWN = {
    "testLoadTableWithMissingMetadataFile(Path)": (
        "An unchanged table (If-None-Match) is 304, and its metadata file is not looked for."
    ),
}
"""Tests that fail -> why."""

OPTIONS = {
    "CATALOG_RCK_REQUIRES__NAMESPACE__CREATE": "true",  # a table is created only in a namespace that exists
    "CATALOG_RCK_OVERRIDES__REQUESTED__LOCATION": "true",  # file:/tmp/x becomes file:///tmp/x
}
ROOTS = {"roots": ["/tmp"]}  # noqa: S108  (where the kit puts tables whose location it chooses)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["postgres", pytest.param("sqlite", marks=pytest.mark.long)], indirect=True)
def test_the_kit_passes_but_for_known_failures(
    store: MetadataStore, url: str, warehouse: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with CatalogProcess(tmp_path, url, str(warehouse), lake=ROOTS) as catalog:
        result = run_kit(catalog.uri, warehouse, tmp_path / "reports", options=OPTIONS)
    with capsys.disabled():
        sys.stdout.write(f"\nREST Compatibility Kit, {url.partition(':')[0]}: {result}\n")
    unexpected = {name: reason for name, reason in result.failed.items() if name not in KNOWN}
    assert not unexpected
    assert not [name for name in KNOWN if name in result.passed], "these pass: take them off the list"
    assert len(result.passed) + len(result.failed) + len(result.aborted) > 100, "the kit did not run all of its tests"


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["sqlite"], indirect=True)
def test_javas_client_logs_in(store: MetadataStore, url: str, warehouse: Path, tmp_path: Path) -> None:
    secret = "a-secret-of-some-length"
    clients = {
        "writer": {"secret": secret, "grants": {"*": "write"}},
        "reader": {"secret": secret, "grants": {"*": "read"}},
    }
    with CatalogProcess(tmp_path, url, str(warehouse), lake=ROOTS, catalog={"clients": clients}) as catalog:

        def run(credential: str) -> tuple[int, str]:
            options = {
                **OPTIONS,
                "CATALOG_CREDENTIAL": credential,
                "CATALOG_OAUTH2__SERVER__URI": f"{catalog.uri}/v1/oauth/tokens",
            }
            reports = tmp_path / credential.replace(":", "-")
            tests = ("testCreateNamespace",)
            result = run_kit(catalog.uri, warehouse, reports, tests=tests, options=options)
            return len(result.passed), " ".join(result.failed.values())

        assert "reader may not write the namespace" in run(f"reader:{secret}")[1]
        assert run(f"writer:{secret}") == (1, "")
