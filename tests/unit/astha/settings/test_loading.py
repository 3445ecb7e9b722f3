from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import SecretStr, ValidationError

from astha.errors import ConfigError
from astha.settings import DEFAULT_REGISTRY, RegistrySettings, Settings, load_settings
from astha.settings.groups import PostgresSourceSettings
from registry.engines import StoreSettings, parse_url, url_secrets
from registry.schema import PUBLICATION

PASSWORD = "open sesame"
URL = "postgresql://me:open%20sesame@db.example/registry?sslmode=require"
TOKEN = "a-token-of-some-length"


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ASTHA_REGISTRY", "ASTHA_CONFIG"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return tmp_path / "astha.yaml"


def test_everything_has_a_default() -> None:
    settings = load_settings()
    assert settings.registry.url.get_secret_value() == DEFAULT_REGISTRY
    assert settings.server.host == "127.0.0.1"
    assert settings.server.secret() is None


def test_the_environment_overrides_the_file_and_a_flag_overrides_both(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config.write_text("server: {port: 1, host: '::1'}\nlease: {ttl_s: 3}\nlog:\n  level: debug\n")
    monkeypatch.setenv("ASTHA_SERVER__PORT", "2")
    monkeypatch.setenv("ASTHA_LEASE__TTL_S", "4")
    settings = load_settings(config, {"server": {"port": "3"}})
    assert (settings.server.port, settings.server.host) == (3, "::1")
    assert (settings.lease.ttl_s, settings.log.level) == (4.0, "debug")


def test_the_slot_follows_the_group_unless_it_is_set(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (load_settings().group, load_settings().source.slot) == ("astha", "astha")
    config.write_text("group: astha\nsource: {status_interval_s: 2}\n")
    assert load_settings(config).source.slot == "astha"
    monkeypatch.setenv("ASTHA_GROUP", "reports")
    settings = load_settings(config)
    assert (settings.group, settings.source.slot, settings.source.status_interval_s) == ("reports", "astha_reports", 2)
    config.write_text("source: {slot: mine}\n")
    assert load_settings(config).source.slot == "mine"
    assert load_settings(config, {"group": "other"}).group == "other"
    longest = load_settings(flags={"group": "a" * 50}).source.slot
    assert PostgresSourceSettings(slot=longest).slot == longest


@pytest.mark.parametrize("name", ["", "A", "a-b", "a/b", "1a", "ä", "a" * 51])
def test_a_groups_name_is_part_of_a_slots_name(name: str) -> None:
    with pytest.raises(ConfigError, match="command line: group"):
        load_settings(flags={"group": name})


def test_components_are_a_list_or_separated_by_commas(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_settings().daemon.components is None
    config.write_text("daemon: {components: [a, b]}\n")
    assert load_settings(config).daemon.components == ("a", "b")
    monkeypatch.setenv("ASTHA_DAEMON__COMPONENTS", "b, c")
    assert load_settings(config).daemon.components == ("b", "c")
    monkeypatch.setenv("ASTHA_DAEMON__COMPONENTS", "c")
    assert load_settings(config).daemon.components == ("c",)
    assert load_settings(config, {"daemon": {"components": "d,e"}}).daemon.components == ("d", "e")
    with pytest.raises(ConfigError, match=r"command line: daemon.components"):
        load_settings(config, {"daemon": {"components": ""}})


def test_the_lease_has_no_name_of_its_own(config: Path) -> None:
    config.write_text("lease: {name: astha}\n")
    with pytest.raises(ConfigError, match=r"there is no setting 'lease.name'"):
        load_settings(config)


def test_the_file_may_be_named_by_the_environment_and_may_be_empty(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASTHA_CONFIG", str(config))
    config.write_text("# nothing yet\n")
    assert load_settings() == Settings()
    config.write_text("subscriptions: elsewhere.yaml\n")
    assert load_settings().subscriptions == Path("elsewhere.yaml")


def test_astha_registry_is_short_for_its_url(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASTHA_REGISTRY", URL)
    monkeypatch.setenv("ASTHA_REGISTRY__POOL_SIZE", "3")
    registry = load_settings().registry
    assert registry.url.get_secret_value() == URL
    assert registry.store.pool_size == 3


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("server:\n  prot: 1\n", "line 2: there is no setting 'server.prot': did you mean 'port'?"),
        ("log: {level: info}\nservr: {}\n", "line 2: there is no setting 'servr': did you mean 'server'?"),
        ("server:\n  port: many\n", "line 2: server.port: Input should be a valid integer"),
        ("server:\n  port: 1\n  port: 2\n", "line 3: 'port' appears twice"),
        ("server: [1\n", "not YAML"),
        ("- server\n", "line 1: expected a mapping"),
        ("daemon: {ledger_interval_s: 0}\n", "line 1: daemon.ledger_interval_s: Input should be greater than 0"),
        ("server: 5\n", "line 1: server: Input should be a valid dictionary"),
    ],
)
def test_errors_in_the_file_are_named_with_their_line(config: Path, text: str, complaint: str) -> None:
    config.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_settings(config)
    assert str(caught.value).startswith(f"{config}: ")
    assert complaint in str(caught.value)


def test_all_errors_are_named_together(config: Path) -> None:
    config.write_text("server: {port: many}\nlog: {level: loud}\n")
    with pytest.raises(ConfigError, match=r"server\.port.*log\.level"):
        load_settings(config)


def test_a_missing_file(config: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        load_settings(config)


@pytest.mark.parametrize(
    ("variable", "complaint"),
    [
        ("ASTHA_SERVER__PROT", "did you mean 'port'"),
        ("ASTHA_SERVR__PORT", "did you mean 'server'"),
        ("ASTHA_SERVER", "is a group of settings"),
    ],
)
def test_an_unknown_variable_is_named(monkeypatch: pytest.MonkeyPatch, variable: str, complaint: str) -> None:
    monkeypatch.setenv(variable, "five")
    with pytest.raises(ConfigError, match=complaint) as caught:
        load_settings()
    assert variable in str(caught.value)


def test_variables_that_kubernetes_sets_for_a_service_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASTHA_PORT", "tcp://10.0.0.1:27840")
    monkeypatch.setenv("ASTHA_SERVICE_HOST", "10.0.0.1")
    assert load_settings() == Settings()


def test_an_error_in_a_flag_names_the_command_line() -> None:
    with pytest.raises(ConfigError, match=r"command line: there is no setting 'server\.prot'"):
        load_settings(flags={"server": {"prot": "1"}})


class TestSecrets:
    @pytest.fixture
    def settings(self, monkeypatch: pytest.MonkeyPatch) -> Settings:
        monkeypatch.setenv("ASTHA_REGISTRY", f"{URL}&sslpassword=key-of-the-key")
        monkeypatch.setenv("ASTHA_SERVER__TOKEN", TOKEN)
        return load_settings()

    def test_are_in_no_representation(self, settings: Settings) -> None:
        for text in (repr(settings), str(settings), settings.model_dump_json(), settings.registry.shown):
            assert "sesame" not in text
            assert "key-of-the-key" not in text
            assert TOKEN not in text

    def test_are_known_to_the_redactor(self, settings: Settings) -> None:
        redact = settings.redactor()
        said = f"{settings.registry.conninfo()} {URL} {TOKEN} sslpassword=key-of-the-key"
        assert "sesame" not in redact(said)
        assert "key-of-the-key" not in redact(said)
        assert TOKEN not in redact(said)

    @pytest.mark.parametrize("url", [f"mysql://me:{PASSWORD}@h/d", f"me:{PASSWORD}@h", f"postgresql:/u:{PASSWORD}@h/d"])
    def test_are_in_no_error(self, monkeypatch: pytest.MonkeyPatch, url: str) -> None:
        monkeypatch.setenv("ASTHA_REGISTRY", url)
        with pytest.raises(ConfigError, match=r"registry\.url") as caught:
            load_settings()
        assert PASSWORD not in str(caught.value)
        assert caught.value.__cause__ is None

    def test_of_the_lakes_catalog_are_known_too(self) -> None:
        catalog = {"type": "sql", "uri": "postgresql+psycopg://me:open-sesame@h/d", "rest.signing": "harmless"}
        redact = load_settings(flags={"lake": {"catalog": catalog, "s3": {"secret_key": "of-the-lake"}}}).redactor()
        assert redact("open-sesame, of-the-lake, harmless") == "***, ***, harmless"

    def test_share_one_redactor_to_which_components_add(self, settings: Settings) -> None:
        settings.redactor().add("of a component")
        assert settings.redactor()("of a component") == "***"

    @pytest.mark.parametrize("url", ["postgresql://me:open@sesame@h/d", "postgresql://me:open@ses:ame@h:5432/d"])
    def test_with_an_unescaped_at_sign_are_refused_without_being_shown(
        self, monkeypatch: pytest.MonkeyPatch, url: str
    ) -> None:
        monkeypatch.setenv("ASTHA_REGISTRY", url)
        with pytest.raises(ConfigError, match=r"registry\.url.*(%40|is not a URL)") as caught:
            load_settings()
        assert "ses" not in str(caught.value)

    def test_that_are_too_short_are_refused_without_being_shown(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("ASTHA_SERVER__TOKEN", "hush")
        with pytest.raises(ConfigError, match="at least 16 characters") as caught:
            load_settings()
        assert "hush" not in str(caught.value)

    def test_may_be_kept_in_a_file(self, tmp_path: Path) -> None:
        kept = tmp_path / "token"
        kept.write_text(f"{TOKEN}\n")
        assert load_settings(flags={"server": {"token_file": str(kept)}}).server.secret() == TOKEN
        kept.write_text("hush")
        with pytest.raises(ConfigError, match="at least 16 characters"):
            load_settings(flags={"server": {"token_file": str(kept)}}).server.secret()


def test_libpq_gets_the_same_parameters_as_sqlalchemy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASTHA_REGISTRY", URL)
    conninfo = load_settings().registry.conninfo()
    for part in (
        f"password='{PASSWORD}'",
        "host=db.example",
        "dbname=registry",
        "sslmode=require",
        "connect_timeout=10",
    ):
        assert part in conninfo


@pytest.mark.parametrize(
    ("host", "loopback"),
    [("127.0.0.1", True), ("127.1.2.3", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("::", False),  # noqa: S104
     ("10.0.0.1", False), ("db.example", False), ("localhost.example", False)],
)  # fmt: skip
def test_loopback_addresses(host: str, loopback: bool) -> None:
    assert load_settings(flags={"server": {"host": host}}).server.loopback is loopback


@pytest.mark.parametrize("text", ["0600", "600", "'0400'", "'rw'"])
def test_a_mode_is_quoted_octal_and_allows_the_owner(tmp_path: Path, text: str) -> None:
    path = tmp_path / "astha.yaml"
    path.write_text(f"registry: {{file_mode: {text}}}\n")
    with pytest.raises(ConfigError, match=r"registry\.file_mode: (write the mode in quotes|String should match)"):
        load_settings(path)
    path.write_text("registry: {file_mode: '0640'}\n")
    assert load_settings(path).registry.store.file_mode == 0o640


class TestRegistryUrl:
    """Plain URLs are accepted without SQLAlchemy: they must be what its parser accepts too."""

    @pytest.mark.parametrize(
        ("url", "secrets"),
        [
            ("sqlite:///registry.db", []),
            ("sqlite:////var/lib/astha/registry.db", []),
            ("postgresql://astha@db.example:5432/registry", []),
            ("postgresql://astha:with%40sign@db.example/registry", ["with@sign"]),
            ("postgres://db.example/registry", []),
        ],
    )
    def test_a_plain_one_is_read_as_the_full_parser_reads_it(self, url: str, secrets: list[str]) -> None:
        settings = RegistrySettings(url=SecretStr(url))
        parse_url(url)
        assert list(settings.secrets()) == list(url_secrets(url)) == secrets

    @pytest.mark.parametrize("url", ["sqlite:///:memory:", "postgresql://h/d?hots=x", "mysql://h/d", "sqlite://", "x"])
    def test_any_other_is_left_to_the_full_parser(self, url: str) -> None:
        with pytest.raises(ValidationError):
            RegistrySettings(url=SecretStr(url))

    def test_defaults_are_those_of_the_store(self) -> None:
        assert RegistrySettings().store == StoreSettings()

    def test_publication_is_the_one_that_migrations_create(self) -> None:
        assert PostgresSourceSettings().publication == PUBLICATION
