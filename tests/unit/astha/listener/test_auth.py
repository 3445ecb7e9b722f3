from __future__ import annotations

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from astha.listener.auth import Access
from astha.listener.options import Options

WRITE, READ = "a-token-that-writes", "a-token-that-reads"


def request(**headers: str) -> web.Request:
    return make_mocked_request("GET", "/status", headers={"Host": "127.0.0.1:27840", **headers})


def bearer(token: str) -> web.Request:
    return request(Authorization=f"Bearer {token}")


class TestHost:
    @pytest.mark.parametrize(
        "host",
        ["127.0.0.1:27840", "127.8.8.8", "localhost", "LOCALHOST:1", "localhost.", "[::1]:1", "astha.example"],
    )
    def test_names_of_this_machine_and_allowed_ones(self, host: str) -> None:
        Access(Options(hosts=frozenset({"astha.example"}))).require_host(request(Host=host))

    @pytest.mark.parametrize(
        "host",
        ["evil.example", "evil.example:27840", "localhost.evil.example", "127.0.0.1.evil.example", "10.0.0.7", "",
         "[::1", "a@localhost", "localhost:port", "localhost/x", "169.254.1.1"],
    )  # fmt: skip
    def test_others_are_refused(self, host: str) -> None:
        with pytest.raises(web.HTTPForbidden, match="Forbidden") as refused:
            Access(Options(hosts=frozenset({"127.0.0.1"}))).require_host(request(Host=host))
        assert "server.allowed_hosts" in (refused.value.text or "")

    def test_any_address_is_accepted_when_listening_on_all_because_it_can_not_be_rebound(self) -> None:
        everywhere = Access(Options(any_address=True))
        everywhere.require_host(request(Host="10.0.0.7:27840"))
        with pytest.raises(web.HTTPForbidden):
            everywhere.require_host(request(Host="evil.example"))

    def test_a_star_allows_every_name(self) -> None:
        Access(Options(hosts=frozenset({"*"}))).require_host(request(Host="any.example"))

    def test_the_own_origin_is_accepted(self) -> None:
        Access(Options()).require_host(request(Origin="http://127.0.0.1:27840"))

    @pytest.mark.parametrize(
        "origin", ["http://evil.example", "null", "", "http://127.0.0.1", "http://127.0.0.1:9188", "file://"]
    )
    def test_a_foreign_origin_is_refused(self, origin: str) -> None:
        with pytest.raises(web.HTTPForbidden):
            Access(Options()).require_host(request(Origin=origin))


class TestTokens:
    both = Access(Options(token=WRITE, read_token=READ))

    def test_the_write_token_allows_both(self) -> None:
        self.both.require_write(bearer(WRITE))
        self.both.require_read(bearer(WRITE), "status")

    def test_the_read_token_allows_only_reading(self) -> None:
        self.both.require_read(bearer(READ), "status")
        with pytest.raises(web.HTTPForbidden) as refused:
            self.both.require_write(bearer(READ))
        assert refused.value.text == "this token only allows reading: use server.token to change state"

    @pytest.mark.parametrize("path", ["status", "metrics", "events"])
    def test_reading_needs_a_token_if_either_is_set(self, path: str) -> None:
        for options in (Options(token=WRITE), Options(read_token=READ)):
            access = Access(options)
            with pytest.raises(web.HTTPUnauthorized):
                access.require_read(request(), path)
            with pytest.raises(web.HTTPForbidden):
                access.require_read(bearer("another-token-entirely"), path)
            assert not access.may_read(request(), path)

    def test_open_paths_need_no_token(self) -> None:
        access = Access(Options(token=WRITE, open_paths=frozenset({"metrics"})))
        access.require_read(request(), "metrics")
        with pytest.raises(web.HTTPUnauthorized):
            access.require_read(request(), "status")

    def test_a_read_token_alone_allows_no_changes(self) -> None:
        with pytest.raises(web.HTTPForbidden) as refused:
            Access(Options(read_token=READ)).require_write(bearer(READ))
        assert "ASTHA_SERVER__TOKEN" in (refused.value.text or "")

    @pytest.mark.parametrize("given", ["Bearer", "Bearer ", f"Basic {WRITE}", WRITE, ""])
    def test_malformed_authorization_headers(self, given: str) -> None:
        with pytest.raises(web.HTTPUnauthorized):
            self.both.require_read(request(Authorization=given), "status")

    def test_a_token_that_is_not_ascii_is_refused(self) -> None:
        with pytest.raises(web.HTTPForbidden):
            self.both.require_read(bearer("\u00e9\u20ac-and-more-of-it"), "status")
