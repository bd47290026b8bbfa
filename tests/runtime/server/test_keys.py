"""API keys: their names, their files, what is kept of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from gristmill.runtime.errors import InputError
from gristmill.runtime.server.keys import Keyring, parse_api_key, read_api_keys
from gristmill.runtime.server.settings import ServerSettings


def test_a_key_is_called_by_its_name_or_by_its_digest() -> None:
    assert parse_api_key("team-a:s3cret").tenant == "team-a"
    nameless = parse_api_key("s3cret")
    assert nameless.tenant == parse_api_key("s3cret").tenant
    assert nameless.tenant.startswith("key-")
    assert nameless.digest == parse_api_key("team-a:s3cret").digest


def test_the_key_itself_is_shown_nowhere() -> None:
    settings = ServerSettings(api_keys=(parse_api_key("a:s3cret"),), admin_token="t0ken")
    assert "s3cret" not in repr(settings)
    assert "t0ken" not in repr(settings)


@pytest.mark.parametrize("text", ["", "name:", ":key", "two words", "name: a b"])
def test_what_is_no_key_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="an API key is invalid"):
        parse_api_key(text)


def test_a_file_holds_a_key_a_line(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("# the teams\nteam-a:one\n\nteam-a:two\nthree\n")
    keyring = Keyring(read_api_keys(path))
    assert keyring.tenant("Bearer one") == keyring.tenant("bearer two") == "team-a"
    assert keyring.tenant("Bearer three") == parse_api_key("three").tenant


def test_a_file_without_a_key_is_refused(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("# none yet\n")
    with pytest.raises(InputError, match="has no API key"):
        read_api_keys(tmp_path / "keys")


def test_a_file_that_is_not_there_is_the_users_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="can't read the API keys"):
        read_api_keys(tmp_path / "keys")


@pytest.mark.parametrize(
    "header", ["", "Bearer", "Bearer ", "Basic one", "one", "Bearer one two", "Bearer ône"]
)
def test_a_header_without_a_known_key_is_nobodys(header: str) -> None:
    assert Keyring([parse_api_key("a:one")]).tenant(header) is None


def test_a_key_of_two_tenants_is_refused() -> None:
    with pytest.raises(InputError, match="stands under two names"):
        Keyring([parse_api_key("a:one"), parse_api_key("b:one")])


def test_the_admin_token_is_no_api_key() -> None:
    with pytest.raises(InputError, match="is an API key too"):
        Keyring([parse_api_key("a:one")], "one")
    keyring = Keyring([parse_api_key("a:one")], "two")
    assert keyring.tenant("Bearer two") is None
    assert keyring.is_admin("Bearer two")
    assert not keyring.is_admin("Bearer one")
    assert not Keyring().is_admin("Bearer ")


def test_a_file_may_begin_with_a_byte_order_mark_and_end_lines_as_windows_does(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_bytes(b"\xef\xbb\xbfone\r\nteam:two\r\n")
    keyring = Keyring(read_api_keys(path))
    assert keyring.tenant("Bearer one")
    assert keyring.tenant("Bearer two") == "team"


@pytest.mark.parametrize("secret", ["schl\u00fcssel", "\u200bkey", "two words", "key\0"])
def test_a_secret_that_no_header_can_carry_is_refused_and_not_shown(secret: str) -> None:
    for make in (lambda: parse_api_key(f"team:{secret}"), lambda: Keyring(admin_token=secret)):
        with pytest.raises(InputError, match="ASCII") as refused:
            make()
        assert secret not in refused.value.line()
