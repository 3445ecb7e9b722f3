"""Canaries: they fail when PyIceberg is upgraded, and say which part of `pyiceberg_internals` to look at."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pyiceberg
import pytest
from pyiceberg.avro.encoder import BinaryEncoder
from pyiceberg.avro.file import AvroFile, AvroOutputFile
from pyiceberg.avro.reader import StructReader
from pyiceberg.avro.resolver import construct_writer, resolve_reader
from pyiceberg.catalog import MetastoreCatalog
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.io.pyarrow import (
    PyArrowFileIO,
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
)
from pyiceberg.manifest import (
    MANIFEST_ENTRY_SCHEMAS,
    DataFile,
    ManifestEntry,
    ManifestFile,
    ManifestWriter,
    ManifestWriterV2,
    _inherit_from_manifest,
    write_manifest_list,
)
from pyiceberg.table import Table
from pyiceberg.table.update import (
    _apply_table_update,
    _TableMetadataUpdateContext,
    _update_table_metadata_log,
    update_table_metadata,
)
from pyiceberg.typedef import Record
from pyiceberg.types import StructType
from pyiceberg.utils.schema_conversion import AvroSchemaConversion

import components
from components.lib.lake.iceberg.pyiceberg_internals import DeleteFileFields

VERSION = "0.12.0"
HERE = "components/lib/lake/iceberg/pyiceberg_internals.py"

AVRO = (
    "pyiceberg.avro.decoder",
    "pyiceberg.avro.encoder",
    "pyiceberg.avro.file",
    "pyiceberg.avro.reader",
    "pyiceberg.avro.resolver",
    "pyiceberg.utils.schema_conversion",
)

PARTS: dict[str, tuple[str, str, Any]] = {
    # what: (digest of its source, what of ours depends on it, the thing itself)
    "AvroFile": ("3ade31b87165", "live_entries reads manifests with it", AvroFile),
    "AvroSchemaConversion": ("763a3e495983", "live_entries keeps a reader per schema", AvroSchemaConversion),
    "resolve_reader": ("b7deab6d5876", "live_entries keeps a reader per schema", resolve_reader),
    "StructReader": ("f1011460cf21", "live_entries uses one in several threads: it must have no state", StructReader),
    "ManifestFile.fetch_manifest_entry": (
        "5ff9e2839c45",
        "live_entries is a copy of it",
        ManifestFile.fetch_manifest_entry,
    ),
    "_inherit_from_manifest": ("b2b152102377", "live_entries", _inherit_from_manifest),
    "ManifestEntry": ("e8e7e483030b", "live_entries fills its properties by place", ManifestEntry),
    "DataFile": ("cd1f55806b66", "live_entries fills its properties by place", DataFile),
    "AvroOutputFile": ("b55a091a64ec", "EncodedAvroFile writes blocks into it", AvroOutputFile),
    "BinaryEncoder": ("e96fa6efc000", "value_encoder", BinaryEncoder),
    "construct_writer": ("bb01812a86c1", "value_encoder", construct_writer),
    "ManifestWriter": ("40ccd83b8914", "CustomManifestWriter copies new_writer", ManifestWriter),
    "ManifestWriterV2": ("2a803406c856", "CustomManifestWriter is one", ManifestWriterV2),
    "write_manifest_list": ("f13074b5103e", "ManifestLists in manifest_lists.py writes the same", write_manifest_list),
    "Record": ("a1d5ba34e20b", "record_values reads _data", Record),
    "PyArrowFileIO._initialize_local_fs": (
        "974c05521029",
        "CustomLocalFileIO overrides it",
        PyArrowFileIO._initialize_local_fs,
    ),
    "SqlCatalog.__init__": ("62c1880ce8b8", "EngineSqlCatalog.__init__ replaces it", SqlCatalog.__init__),
    "SqlCatalog._init_catalog": ("a47655bd5f3c", "EngineSqlCatalog.__init__ calls it", SqlCatalog._init_catalog),
    "SqlCatalog.commit_table": ("fb22ea690ba6", "RegistryCatalog.commit_table replaces it", SqlCatalog.commit_table),
    "IcebergTables": ("2a982c791310", "swap_metadata_location updates its rows", IcebergTables),
    "MetastoreCatalog.__init__": ("5e1bb8b09d95", "EngineSqlCatalog.__init__ calls it", MetastoreCatalog.__init__),
    "MetastoreCatalog._parse_metadata_version": (
        "ddcc204ecfc7",
        "next_metadata_location",
        MetastoreCatalog._parse_metadata_version,
    ),
    "MetastoreCatalog._update_and_stage_table": (
        "2a491d005639",
        "PointerCatalog.write_new_table",
        MetastoreCatalog._update_and_stage_table,
    ),
    "MetastoreCatalog._write_metadata": (
        "2ed45bacb9a4",
        "PointerCatalog.write_new_table",
        MetastoreCatalog._write_metadata,
    ),
    "MetastoreCatalog._load_file_io": ("82be8a6cfd40", "PointerCatalog.read_table", MetastoreCatalog._load_file_io),
    "Table._do_commit": ("794b91fe1dcf", "commit", Table._do_commit),
    "update_table_metadata": (
        "cdfaa6553c2f",
        "updated_metadata is a copy without the deep copy",
        update_table_metadata,
    ),
    "_TableMetadataUpdateContext": ("3fbfad3fa0b2", "updated_metadata", _TableMetadataUpdateContext),
    "_update_table_metadata_log": ("1e055143f050", "updated_metadata", _update_table_metadata_log),
    "_apply_table_update": ("a324bf37207e", "updated_metadata", _apply_table_update),
    # no underscore, and not documented either
    "compute_statistics_plan": ("cfcaa3154add", "files/footers.py: iceberg_statistics", compute_statistics_plan),
    "data_file_statistics_from_parquet_metadata": (
        "ca77393ca4e9",
        "files/footers.py: iceberg_statistics",
        data_file_statistics_from_parquet_metadata,
    ),
    "parquet_path_to_id_mapping": ("fe8bc37b6ff8", "files/footers.py: iceberg_statistics", parquet_path_to_id_mapping),
}


def test_the_version_is_the_reviewed_one() -> None:
    assert pyiceberg.__version__ == VERSION, (
        f"PyIceberg {pyiceberg.__version__} is installed. Read {HERE} against it (the test below names the parts that "
        "have changed), run the tests of the lake and benchmarks.lake, then change VERSION here and the pin in "
        "pyproject.toml"
    )


@pytest.mark.parametrize("name", PARTS)
def test_a_private_part_is_unchanged(name: str) -> None:
    digest, dependent, part = PARTS[name]
    found = digest_of(part)
    assert found == digest, (
        f"PyIceberg's {name} has changed. What depends on it: {dependent} ({HERE} unless another file is named). If "
        f"that is still right, change the digest here to {found}"
    )


def test_registered_metadata_updates_are_the_reviewed_ones() -> None:
    kinds = sorted(kind.__name__ for kind in _apply_table_update.registry if kind is not object)
    sources = [digest_of(_apply_table_update.dispatch(kind)) for kind in _apply_table_update.registry]
    assert sha256("".join([*kinds, *sorted(sources)]).encode()).hexdigest()[:12] == "fa420eba5e46", (
        f"PyIceberg applies updates of metadata otherwise than before: see updated_metadata in {HERE}. None of these "
        f"may change the metadata that it is given: {', '.join(kinds)}"
    )


def test_fields_of_format_version_3_are_where_they_are_read() -> None:
    entry, file = (MANIFEST_ENTRY_SCHEMAS[version].find_type("data_file") for version in (2, 3))
    assert isinstance(entry, StructType)
    assert isinstance(file, StructType)
    assert [field.field_id for field in file.fields[:16]] == [field.field_id for field in entry.fields[:16]]
    assert tuple(field.name.removesuffix("_in_bytes") for field in file.fields[17:20]) == DeleteFileFields._fields


def test_arrows_parquet_writer_can_be_marked_as_closed() -> None:
    """`ParquetWriter.is_open` is not documented; `files/parquet.py` sets it after a failed write."""
    source = inspect.getsource(pq.ParquetWriter)
    assert "if getattr(self, 'is_open', False):" in source, (
        "pyarrow.parquet.ParquetWriter closes itself otherwise than before: see ParquetWriter._give_up in "
        "components/lib/lake/files/parquet.py"
    )


def test_no_other_module_uses_private_parts_of_pyiceberg() -> None:
    root = Path(components.__path__[0])
    found = []
    for path in root.rglob("*.py"):
        if path.match(HERE):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pyiceberg"):
                private = [alias.name for alias in node.names if alias.name.startswith("_")]
                if private or node.module in AVRO:
                    found.append(f"{path.relative_to(root)}: {node.module} {private}")
            if isinstance(node, ast.Attribute) and node.attr in ("_do_commit", "_init_catalog", "_initialize_local_fs"):
                found.append(f"{path.relative_to(root)}: .{node.attr}")
    assert not found, f"move it to {HERE}, and add a canary here"


def digest_of(part: Callable[..., Any] | type) -> str:
    return sha256(inspect.getsource(inspect.unwrap(part)).encode()).hexdigest()[:12]
