"""The settings of the lake: the location of tables and files, and the storage's credentials."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import Field, SecretStr

from astha.file_modes import FileMode, mode_of
from astha.redaction import is_secret_name, secrets_in_url
from astha.settings.groups import SettingsGroup
from registry.private_files import Modes


class S3Settings(SettingsGroup):
    """S3-compatible storage. Credentials that are not set come from the machine's environment."""

    endpoint: str | None = Field(None, description="Endpoint URL; empty for AWS.")
    region: str = Field("us-east-1", description="Region for request signing.")
    access_key: SecretStr | None = Field(None, description="Access key id.")
    secret_key: SecretStr | None = Field(None, description="Secret access key.")
    session_token: SecretStr | None = Field(None, description="Session token of temporary credentials.")
    allow_http: bool = Field(False, description="Allow an endpoint without TLS.")
    virtual_hosted: bool = Field(False, description="Use the bucket as part of the host name.")


class LakeSettings(SettingsGroup):
    """The location of tables and files, the same for all components and commands."""

    warehouse: str = Field(
        "warehouse",
        description="Location of new tables: a directory, or s3://bucket/prefix. The registry keeps it from its first "
        "use on (`astha registry locations`), and another value is refused. Not set: the registry's; in a new registry "
        "`warehouse` beside the SQLite file. A new registry on a server needs it.",
    )
    streams: str | None = Field(
        None,
        description="Location of the objects of topics, which the registry keeps, too. Empty: the registry's; in a new "
        "registry `streams` in the warehouse.",
    )
    file_mode: FileMode = Field("0600", description="Mode of new files in a local warehouse.")
    directory_mode: FileMode = Field("0700", description="Mode of new directories in a local warehouse.")
    s3: S3Settings = S3Settings()
    roots: tuple[str, ...] = Field(
        (),
        description="Further locations below which files may be deleted, beside the warehouse and the tables' "
        "locations: for objects of topics written elsewhere, and for tables that are dropped with --purge.",
    )
    intents_stale_after_s: float = Field(
        900.0,
        gt=0,
        description="Upload intents not renewed for this long are stale, and their objects are deleted. Objects are "
        "kept this long after their last segment, metadata files after their last snapshot. The same for all "
        "components and commands.",
    )
    catalog: dict[str, SecretStr] = Field(
        {}, description="Properties of a PyIceberg catalog; empty for the catalog in the registry's database."
    )

    @property
    def modes(self) -> Modes:
        return Modes(mode_of(self.file_mode), mode_of(self.directory_mode))

    def catalog_properties(self) -> dict[str, str]:
        """The result contains secrets."""
        return {name: value.get_secret_value() for name, value in self.catalog.items()}

    def secrets(self) -> Iterator[str]:
        for secret in (self.s3.access_key, self.s3.secret_key, self.s3.session_token):
            if secret is not None:
                yield secret.get_secret_value()
        for name, value in self.catalog.items():
            if is_secret_name(name):
                yield value.get_secret_value()
            yield from secrets_in_url(value.get_secret_value())
        if self.s3.endpoint is not None:
            yield from secrets_in_url(self.s3.endpoint)
