"""Where the lake's tables and files are, and how to reach them."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import Field, SecretStr

from astha.file_modes import FileMode, mode_of
from astha.redaction import is_secret_name, secrets_in_url
from astha.settings.groups import SettingsGroup
from registry.private_files import Modes


class S3Settings(SettingsGroup):
    """How to reach S3-compatible storage. What is not given comes from the machine's own credentials."""

    endpoint: str | None = Field(None, description="Address of the service; none for the cloud's own.")
    region: str = Field("us-east-1", description="Region to sign for.")
    access_key: SecretStr | None = Field(None, description="Access key id.")
    secret_key: SecretStr | None = Field(None, description="Secret access key.")
    session_token: SecretStr | None = Field(None, description="Of temporary credentials.")
    allow_http: bool = Field(False, description="Whether the endpoint may be reached without TLS.")
    virtual_hosted: bool = Field(False, description="Whether a bucket is part of the host name.")


class LakeSettings(SettingsGroup):
    """Where tables live. One place for all components and commands, so that no two of them can differ."""

    warehouse: str = Field("warehouse", description="Where new tables go: a directory, or s3://bucket/prefix.")
    file_mode: FileMode = Field("0600", description="Mode of files that are created below a local warehouse.")
    directory_mode: FileMode = Field("0700", description="Mode of directories that are created for a local warehouse.")
    s3: S3Settings = S3Settings()
    roots: tuple[str, ...] = Field(
        (),
        description="Further places below which files may be deleted, beside the warehouse and the tables' "
        "locations: where writers of topics put objects elsewhere, and where tables were that are dropped with "
        "--purge.",
    )
    intents_stale_after_s: float = Field(
        900.0,
        gt=0,
        description="Uploads not renewed for so long are given up, and their objects deleted; objects outlive their "
        "last segment, and metadata files their last snapshot, for so long. One threshold for all components and "
        "commands.",
    )
    catalog: dict[str, SecretStr] = Field(
        {}, description="Properties of a PyIceberg catalog; none for one in the registry's own database."
    )

    @property
    def modes(self) -> Modes:
        return Modes(mode_of(self.file_mode), mode_of(self.directory_mode))

    def catalog_properties(self) -> dict[str, str]:
        """Holds secrets."""
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
