"""The registry's tables in the Iceberg catalog: load, create, evolve, rename, drop, commit.

Blocking and thread-safe: one commit per table at a time in this process; if another process has committed first, the
commit is built again from the newest metadata.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TypeAlias, TypeVar
from uuid import uuid4
from weakref import WeakValueDictionary

import structlog
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NamespaceNotEmptyError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
    ValidationError,
)
from pyiceberg.io import load_file_io
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import StagedTable, Table, TableProperties
from pyiceberg.table.metadata import new_table_metadata
from pyiceberg.table.update import AssertCreate
from sqlalchemy.exc import SQLAlchemyError

from components.lib.lake.iceberg.catalog import InRegistry
from components.lib.lake.iceberg.commits import FilesMissing, TableCommit
from components.lib.lake.iceberg.errors import (
    BrokenTable,
    CatalogUnavailable,
    ForeignTable,
    TableProblem,
    TableUnavailable,
    with_mapped_errors,
)
from components.lib.lake.iceberg.manifest_lists import KnownManifests
from components.lib.lake.iceberg.pyiceberg_internals import commit
from components.lib.lake.iceberg.schema_updates import creation
from components.lib.lake.iceberg.stamp import REGISTRY, TABLE_ID
from components.lib.lake.iceberg.table_owners import TableOwners
from components.lib.lake.schema.table_schema import SchemaProblem, TableSchema
from components.lib.lake.storage.table_places import own_files
from components.lib.lake.table_lookup import TableName, full_name
from registry.models import LakeTable

log = structlog.get_logger(__name__)

T = TypeVar("T")

Identifier: TypeAlias = tuple[str, ...]
Build: TypeAlias = Callable[[TableCommit], None]

PROPERTIES = {
    TableProperties.METADATA_PREVIOUS_VERSIONS_MAX: "20",
    TableProperties.METADATA_DELETE_AFTER_COMMIT_ENABLED: "true",
    # Astha merges manifests itself; this is for other engines, which would otherwise merge all into one.
    TableProperties.MANIFEST_MERGE_ENABLED: "true",
}
"""Properties of a new table."""

_ATTEMPTS = 10
_LOCK_TIMEOUT_S = 60.0
_MAX_LOADED = 512
_MAX_SNAPSHOTS = 20_000
"""Of all loaded tables: a snapshot takes about 5 kB."""

_locks: WeakValueDictionary[object, threading.Lock] = WeakValueDictionary()  # while a thread holds or waits for one
_locks_guard = threading.Lock()


def identifier_of(table: LakeTable) -> Identifier:
    return TableName.of(table).identifier


class IcebergTables:
    """`TableProblem` concerns one table and needs the operator; `TableUnavailable` concerns one table and is
    temporary; any other `CatalogUnavailable` concerns all tables and is temporary.

    `identity` (see `registry_identity`) tells the tables of this registry from those of another that has the same ids:
    a table of another one is never read, committed to, renamed or dropped.
    """

    def __init__(self, catalog: Catalog, identity: str) -> None:
        if not identity:
            raise ValueError(
                "IcebergTables needs the registry's identity: see components.lib.lake.iceberg.registry_identity"
            )
        self.catalog = catalog
        self._identity = identity
        self._owners = TableOwners(identity, catalog.properties)
        self._loaded: OrderedDict[int, Table] = OrderedDict()  # most recently used last
        self._names: dict[int, Identifier] | None = None
        self._manifests: dict[int, KnownManifests] = {}  # of some loaded tables
        self._unreadable: set[Identifier] = set()
        self.claimed: frozenset[Identifier] = frozenset()
        """Names of the registry's tables now: an unreadable Iceberg table of such a name is that table's."""
        self._retired = False

    def close(self) -> None:
        self.catalog.close()

    def retired(self) -> IcebergTables:
        """Returns a successor for the same catalog; this one commits nothing more. A call that was left behind in a
        thread must not repeat what its successor has done meanwhile.
        """
        self._retired = True
        successor = IcebergTables(self.catalog, self._identity)
        successor.claimed = self.claimed
        successor._owners = self._owners
        return successor

    def responds(self) -> bool:
        """Returns whether the catalog responds: then one table's storage has failed."""
        try:
            self.catalog.list_namespaces()
        except Exception as error:
            log.debug("catalog does not respond", error=repr(error))
            return False
        return True

    def load(self, table: LakeTable, *, cached: bool = False) -> Table | None:
        """Loads a table by its name in the registry. Raises `ForeignTable` if the catalog's is not this one."""
        if cached and (known := self._loaded.get(table.id)) is not None and known.name() == identifier_of(table):
            self._keep(table.id, known)
            return known
        found = self._load(identifier_of(table))
        if found is None:
            self._loaded.pop(table.id, None)
            return None
        owner = found.metadata.properties.get(TABLE_ID)
        if owner != str(table.id) or not self._is_ours(found):
            whose = "not Astha's" if owner is None else f"that of table {owner} of this or another registry"
            raise ForeignTable(
                f"the catalog has a table {full_name(table)}, and it is {whose}: rename or drop one of them"
            )
        self._keep(table.id, found)
        self._remember(table)
        return found

    def as_of(self, table: Table, location: str | None) -> Table:
        """Returns the table as of an earlier metadata file of its own; as it is, if that is None.

        Raises `TableUnavailable` if the file is gone: so many commits were made meanwhile.
        """
        if location is None or location == table.metadata_location:
            return table
        name = ".".join(table.name())
        try:
            metadata = self._of_table(name, lambda: FromInputFile.table_metadata(table.io.new_input(location)))
        except FileNotFoundError as error:
            raise TableUnavailable(f"{name} was committed to while it was compared with the registry") from error
        return Table(table.name(), metadata, location, table.io, table.catalog)

    def _keep(self, table_id: int, table: Table) -> None:
        """Metadata can be megabytes, so only the most recently used tables are cached."""
        self._loaded[table_id] = table
        with suppress(KeyError, RuntimeError):  # another thread has changed it meanwhile
            self._loaded.move_to_end(table_id)
            snapshots = sum(len(kept.metadata.snapshots) for kept in self._loaded.values())
            while len(self._loaded) > 1 and (len(self._loaded) > _MAX_LOADED or snapshots > _MAX_SNAPSHOTS):
                gone, evicted = self._loaded.popitem(last=False)
                snapshots -= len(evicted.metadata.snapshots)
                self._manifests.pop(gone, None)

    def has(self, table: LakeTable) -> bool:
        """Under its own or another name."""
        if table.id in self._loaded:
            return True
        with suppress(ForeignTable):
            if self.load(table) is not None:
                return True
        return table.id in self.names()

    def owner(self, identifier: Identifier) -> int | None:
        """Which of the registry's tables the catalog has under this name; None if it is none of them."""
        found = self._load(identifier)
        return None if found is None else self._owners.of(found.metadata.properties)

    def ensure(
        self,
        table: LakeTable,
        schema: TableSchema,
        *,
        new: bool = False,
        create: bool = True,
        displace: Callable[[Table], bool] = lambda _: True,
    ) -> Table:
        """The table under its name, created if it is not there, renamed if it is there under another. ``new``: it can't
        be there under another. Without ``create``, raises `TableUnavailable` if it would have to be created.

        A name is one table's in the registry: another of its tables that still has it is on its way to another name,
        or out, and has to wait for that elsewhere, unless ``displace`` returns False for it.
        """
        try:
            found = self.load(table, cached=True)
        except ForeignTable:
            if not self._move_aside(identifier_of(table), displace):
                raise
            found, create = None, True
        if found is not None:
            return found
        former = None if new else self.names().get(table.id)
        if former is not None and former != identifier_of(table):
            renamed = self._rename(former, table)
            if renamed is not None:
                return renamed
        if not new and self._unreadable - self.claimed:
            self._names = self._scan()  # it may be readable by now
        doubtful = self._unreadable - self.claimed
        if doubtful and not new:
            raise TableUnavailable(
                f"{full_name(table)} may be {'.'.join(min(doubtful))}, under a former name, which can't be read now"
            )
        if not create:
            raise TableUnavailable(f"the Iceberg table {full_name(table)} was dropped meanwhile")
        return self._create(table, schema)

    def commit(self, table: LakeTable, build: Build) -> TableCommit | None:
        """Commits what `build` makes of the newest metadata; it is called again if another process commits first.

        Returns None if there is nothing to commit. Call `ensure` first: the table must exist.
        """
        with _locked(self.catalog, table):
            loaded, fresh = self.load(table, cached=True), False
            for _ in range(_ATTEMPTS):
                self._require_wanted(table)
                if loaded is None:
                    raise TableUnavailable(f"the Iceberg table {full_name(table)} was dropped meanwhile")
                draft = TableCommit(loaded, self._manifests.setdefault(table.id, KnownManifests()))
                try:
                    built = self._built(draft, build)
                except (TableProblem, SchemaProblem, FilesMissing):
                    # The problem may be that the cached table is older than the change that is to be committed.
                    before, loaded = loaded.metadata_location, loaded if fresh else self.load(table)
                    fresh = True
                    if loaded is None or loaded.metadata_location == before:
                        raise
                    continue
                if not built:
                    return None
                try:
                    self._require_wanted(table)
                    self._commit(draft)
                except CommitFailedException:
                    draft.discard()
                    loaded, fresh = self.load(table), True
                    continue
                except Exception:
                    # It is unknown whether it was committed: the next attempt loads the table again.
                    self.forget_one(table.id)
                    raise
                draft.remember()
                return draft
            raise TableUnavailable(f"{full_name(table)}: {_ATTEMPTS} commits in a row conflicted with others")

    def read(self, table: LakeTable, call: Callable[[], T]) -> T:
        """Calls a reader of manifests. Raises `BrokenTable` if one is missing, `TableUnavailable` if a read fails."""
        name = full_name(table)
        try:
            return self._of_table(name, call)
        except FileNotFoundError as error:
            raise BrokenTable(f"{name} refers to a file that is not there: {error}") from error

    def write(self, table: LakeTable, call: Callable[[], T]) -> T:
        """Calls a writer of manifests that no commit refers to yet. Raises `TableUnavailable` if a write fails."""
        try:
            return self._of_table(full_name(table), call)
        except FileNotFoundError as error:
            raise TableUnavailable(f"{full_name(table)}: {error}") from error

    def try_storage(self, table: Table) -> None:
        """Writes a small object beside the table's metadata, reads and deletes it. TableUnavailable if that fails."""
        name = ".".join(table.name())
        probe = f"{table.location().rstrip('/')}/metadata/.astha-probe-{uuid4().hex}"

        def attempt() -> None:
            with table.io.new_output(probe).create() as output:
                output.write(b"probe")
            try:
                with table.io.new_input(probe).open() as written:
                    if written.read() != b"probe":
                        raise OSError(f"{probe} does not have the content that was written")
            finally:
                table.io.delete(probe)

        try:
            self._of_table(name, attempt)
        except FileNotFoundError as error:
            raise TableUnavailable(f"{name}: nothing can be written to {table.location()}: {error}") from error

    def drop(self, table_id: int, *, pointers: Mapping[Identifier, str] | None = None) -> bool:
        """Drops the table from the catalog; files stay. Returns False if there was none.

        ``pointers``: only if its metadata is still where these say.
        """
        name = self.names().pop(table_id, None)
        self._loaded.pop(table_id, None)
        self._manifests.pop(table_id, None)
        if name is None:
            if self._unreadable:
                self._names = None  # it may be one of those: scan again the next time
            return False
        with suppress(BrokenTable):  # it is dropped unread
            found = self._load(name)
            if found is None or found.metadata.properties.get(TABLE_ID) != str(table_id) or not self._is_ours(found):
                return False  # an engine has dropped it, and the name may be another table's by now
            if pointers is not None and pointers.get(name) != found.metadata_location:
                self._names = None
                return False
        try:
            self.catalog.drop_table(name)
        except (NoSuchTableError, NoSuchNamespaceError):
            return False
        self._drop_empty_namespace(name[:-1])
        return True

    def metadata_files(self, table_id: int, others: Collection[tuple[str, str]] = ()) -> list[str]:
        """Returns the metadata files that the table's metadata still refers to, without those that belong to another
        table: `others` are the places of all tables and their names (`metadata_places`).
        """
        name = self.names().get(table_id)
        table = None if name is None else self._load(name)
        if table is None:
            return []
        found = [table.metadata_location, *(entry.metadata_file for entry in table.metadata.metadata_log)]
        manifests: set[str] = set()
        for snapshot in table.metadata.snapshots:
            found.append(snapshot.manifest_list)
            manifests.update(manifest.manifest_path for manifest in snapshot.manifests(table.io))
        own_name = ".".join(name or ())
        return own_files(
            [*found, *sorted(manifests)],
            location=table.location(),
            directory=table.metadata_location.rpartition("/")[0],
            others=[place for place, other in others if other != own_name],
        )

    @property
    def in_registry(self) -> bool:
        """Whether the catalog's pointers are rows of the registry."""
        return isinstance(self.catalog, InRegistry)

    def knows(self, table_id: int) -> bool:
        """Whether `names` has the table, or would scan the catalog for it."""
        return self._names is None or table_id in self._names

    def remember(self, table: LakeTable) -> None:
        """Call it for a table that an engine has created: `names` includes it, so that it can be dropped."""
        self._remember(table)

    def names(self) -> dict[int, Identifier]:
        """Returns the catalog's names of the registry's tables. The first call reads every table's properties."""
        if self._names is None:
            self._names = self._scan()
        return self._names

    @property
    def unreadable(self) -> frozenset[Identifier]:
        """The tables that the last scan could not read, so that their owner is unknown."""
        return frozenset(self._unreadable)

    def is_unreadable(self, identifier: Identifier) -> bool:
        """Returns whether the last scan found a table of that name that could not be read."""
        return identifier in self._unreadable

    def forget_one(self, table_id: int) -> None:
        """Removes this table from the cache."""
        self._loaded.pop(table_id, None)
        self._manifests.pop(table_id, None)

    def forget(self) -> None:
        """Clears the cache."""
        self._names = None
        self._loaded.clear()
        self._manifests.clear()

    def _require_wanted(self, table: LakeTable) -> None:
        if self._retired:
            raise CatalogUnavailable(f"{full_name(table)}: this call was given up")

    def _scan(self) -> dict[int, Identifier]:
        """Skips tables that cannot be read, and remembers them: they must not block the others."""
        found: dict[int, Identifier] = {}
        unreadable: set[Identifier] = set()
        for identifier, location in with_mapped_errors(lambda: list(self._listed())):
            try:
                owner = self._owner_by(identifier, location)
            except (BrokenTable, TableUnavailable) as problem:  # raised again by `load`
                unreadable.add(identifier)
                log.warning("Iceberg table could not be read", table=".".join(identifier), problem=str(problem))
                continue
            if owner is not None:
                found[owner] = identifier
        self._unreadable = unreadable  # other threads see the former ones until the end
        return found

    def _listed(self) -> Iterator[tuple[Identifier, str | None]]:
        """Yields all tables, with their metadata files if the catalog is the registry's."""
        if isinstance(self.catalog, InRegistry):
            pointers = self.catalog.pointers()
            self._owners.keep_only([location for _, location in pointers])
            yield from pointers
            return
        for namespace in self._namespaces(()):
            for identifier in self._list(namespace):
                yield tuple(identifier), None

    def _owner_by(self, identifier: Identifier, location: str | None) -> int | None:
        if location is not None:
            with suppress(Exception):  # it may have been replaced and deleted meanwhile: the table is loaded
                return self._owners.read(location)
        return self.owner(identifier)

    def _list(self, namespace: Identifier) -> list[Identifier]:
        try:
            return self.catalog.list_tables(namespace)
        except NoSuchNamespaceError:  # dropped with its last table, just now
            return []

    def _is_ours(self, table: Table) -> bool:
        return table.metadata.properties.get(REGISTRY) == self._identity

    def _namespaces(self, parent: Identifier) -> Iterator[Identifier]:
        with suppress(NoSuchNamespaceError):  # dropped meanwhile
            for namespace in self.catalog.list_namespaces(parent):
                if namespace != parent:
                    yield tuple(namespace)
                    yield from self._namespaces(tuple(namespace))

    def _load(self, identifier: Identifier) -> Table | None:
        try:
            return self._of_table(".".join(identifier), lambda: self.catalog.load_table(identifier))
        except (NoSuchTableError, NoSuchNamespaceError):
            return None
        except FileNotFoundError as error:
            raise BrokenTable(
                f"{'.'.join(identifier)}: the catalog points to metadata that is not there ({error}): restore it, or "
                "drop the table from the catalog, and `astha refresh iceberg_updater` creates it again"
            ) from error
        except (ValueError, ValidationError) as error:
            reason = " ".join(str(error).split("[type=")[0].split())
            raise BrokenTable(
                f"{'.'.join(identifier)}: the catalog points to metadata that can't be read ({reason}): restore it, or "
                "drop the table from the catalog, and `astha refresh iceberg_updater` creates it again"
            ) from error

    def _create(self, table: LakeTable, schema: TableSchema) -> Table:
        identifier = identifier_of(table)
        self._create_namespace(identifier[:-1])
        properties = {**PROPERTIES, TABLE_ID: str(table.id), REGISTRY: self._identity}
        draft = new_table_metadata(schema.iceberg, schema.partition, schema.order, table.location, properties)
        staged = StagedTable(identifier, draft, "", load_file_io(self.catalog.properties, table.location), self.catalog)
        name = full_name(table)
        try:
            self._of_table(
                name,
                lambda: self.catalog.commit_table(
                    staged, (AssertCreate(),), creation(schema, table.location, properties)
                ),
            )
        except FileNotFoundError as error:
            raise TableUnavailable(f"{name}: nothing can be written to {table.location}: {error}") from error
        except (CommitFailedException, TableAlreadyExistsError):
            log.info("Iceberg table exists already", table=name)
        found = self.load(table)
        if found is None:
            raise TableUnavailable(f"the Iceberg table {full_name(table)} was dropped as soon as it was created")
        self._remember(table)
        return found

    def _create_namespace(self, namespace: Identifier) -> None:
        for depth in range(1, len(namespace) + 1):
            try:
                with_mapped_errors(lambda name=namespace[:depth]: self.catalog.create_namespace(name))  # type: ignore[misc]
            except NamespaceAlreadyExistsError:
                continue

    def _drop_empty_namespace(self, namespace: Identifier) -> None:
        try:
            if not self.catalog.list_tables(namespace):
                self.catalog.drop_namespace(namespace)
        except (NamespaceNotEmptyError, NoSuchNamespaceError):
            pass

    def _rename(self, former: Identifier, table: LakeTable) -> Table | None:
        self._create_namespace(identifier_of(table)[:-1])
        try:
            with_mapped_errors(lambda: self.catalog.rename_table(former, identifier_of(table)))
        except (NoSuchTableError, NoSuchNamespaceError):
            return None
        except TableAlreadyExistsError as error:
            raise ForeignTable(f"{'.'.join(former)} can't become {full_name(table)}: {error}") from error
        self._remember(table)
        log.info("Iceberg table renamed", was=".".join(former), table=full_name(table))
        return self.load(table)

    def _move_aside(self, identifier: Identifier, allowed: Callable[[Table], bool]) -> bool:
        found = self._load(identifier)
        owner = None if found is None else found.metadata.properties.get(TABLE_ID)
        if found is None or owner is None or not self._is_ours(found) or not allowed(found):
            return False
        aside = (*identifier[:-1], f"{identifier[-1]}__astha_{owner}")
        with_mapped_errors(lambda: self.catalog.rename_table(identifier, aside))
        self._loaded.pop(int(owner), None)
        self.names()[int(owner)] = aside
        log.info("Iceberg table moved aside", was=".".join(identifier), now=".".join(aside))
        return True

    def _remember(self, table: LakeTable) -> None:
        if self._names is not None:
            self._names[table.id] = identifier_of(table)

    def _built(self, draft: TableCommit, build: Build) -> bool:
        """Returns whether there is anything to commit. Removes written files if the build fails."""
        try:
            self._of_table(".".join(draft.table.name()), lambda: build(draft))
        except FileNotFoundError as error:
            draft.discard()
            raise BrokenTable(f"{'.'.join(draft.table.name())} refers to a file that is not there: {error}") from error
        except BaseException:
            draft.discard()
            raise
        return bool(draft.updates)

    def _commit(self, draft: TableCommit) -> None:
        updates, requirements = tuple(draft.updates), draft.requirements()
        try:
            self._of_table(".".join(draft.table.name()), lambda: commit(draft.table, updates, requirements))
        except FileNotFoundError as error:
            raise TableUnavailable(
                f"{'.'.join(draft.table.name())}: nothing can be written to {draft.table.location()}: {error}"
            ) from error

    def _of_table(self, name: str, call: Callable[[], T]) -> T:
        """Like `with_mapped_errors`, but raises `TableUnavailable` if the catalog itself responds."""
        try:
            return with_mapped_errors(call)
        except TableUnavailable:
            raise
        except CatalogUnavailable as error:
            cause = error.__cause__
            if cause is None or isinstance(cause, SQLAlchemyError) or not self.responds():
                raise
            raise TableUnavailable(f"{name}: its storage does not answer: {cause}") from cause


@contextmanager
def _locked(catalog: Catalog, table: LakeTable) -> Iterator[None]:
    """Allows one commit per table at a time. The timeout keeps a call that hangs from blocking others forever."""
    with _locks_guard:
        lock = threading.Lock()
        lock = _locks.setdefault((catalog.name, catalog.properties.get("uri"), table.id), lock)
    if not lock.acquire(timeout=_LOCK_TIMEOUT_S):
        raise TableUnavailable(f"{full_name(table)}: another commit to it has not returned for {_LOCK_TIMEOUT_S:g} s")
    try:
        yield
    finally:
        lock.release()
