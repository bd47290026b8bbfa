"""`serve`'s options: from the command line, a file and the environment; one clear line for each fault."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gristmill.runtime.engine_folder import EngineFolder
from gristmill.runtime.server.settings import ServerSettings
from gristmill.runtime.settings import EngineSettings

Run = Callable[..., Any]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[EngineSettings, ServerSettings]]:
    """What a server would be started with: no model has to be loaded to see that."""
    calls: list[tuple[EngineSettings, ServerSettings]] = []

    def run_server(folders: object, settings: EngineSettings, server: ServerSettings, **rest: object) -> None:
        calls.append((settings, server))

    def engine_folder(ref: str, **rest: object) -> EngineFolder:
        return EngineFolder(ref, "reference", tmp_path, tmp_path)

    monkeypatch.setattr("gristmill.cli.serve.run_server", run_server)
    monkeypatch.setattr("gristmill.facade.engine_folder", engine_folder)
    return calls


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "serve.yaml"
    path.write_text(text)
    return path


def test_every_option_reaches_the_server(gristmill: Run, started: list[Any]) -> None:
    done = gristmill(
        *("serve", "m", "--host", "::1", "--port", 5, "--max-num-seqs", 3, "--max-num-batched-tokens", 64),
        *("--itl-target", 20, "--no-prefix-caching", "--max-waiting", 9, "--max-waiting-tokens", 99),
        *("--block-size", 32, "--kv-cache-memory", "1GiB", "--memory", "2GiB", "--memory-soft", "1GiB"),
        *("--memory-restart", "3GiB", "--api-key", "a:one", "--api-key", "two", "--admin-token", "t"),
        *(
            "--max-open-per-key",
            4,
            "--grace",
            7,
            "--stall",
            8,
            "--log-format",
            "json",
            "--log-level",
            "debug",
        ),
        *("--cors-origin", "https://a.example", "--cors-origin", "http://localhost:3000"),
    )
    assert done.code == 0, done.err
    ((settings, server),) = started
    assert settings == EngineSettings(
        block_size=32,
        max_num_seqs=3,
        max_num_batched_tokens=64,
        max_waiting=9,
        max_waiting_tokens=99,
        itl_target_ms=20.0,
        prefix_caching=False,
        memory_bytes=2 << 30,
        kv_cache_bytes=1 << 30,
    )
    assert server.api_keys[0].tenant == "a"
    assert (server.host, server.port, server.admin_token, len(server.api_keys)) == ("::1", 5, "t", 2)
    assert (server.memory_soft, server.memory_restart) == (1 << 30, 3 << 30)
    assert (server.max_open_per_tenant, server.grace_seconds, server.stall_seconds) == (4, 7.0, 8.0)
    assert (server.log_format, server.log_level) == ("json", "debug")
    assert server.cors_origins == ("https://a.example", "http://localhost:3000")


def test_what_is_not_given_keeps_its_default(gristmill: Run, started: list[Any]) -> None:
    assert gristmill("serve", "m").code == 0
    assert started == [(EngineSettings(), ServerSettings())]
    assert EngineSettings().max_num_seqs == 32


def test_a_file_holds_options_and_the_command_line_wins(
    gristmill: Run, started: list[Any], tmp_path: Path
) -> None:
    path = write(
        tmp_path,
        "refs: [m]\nport: 7\nmax-num-seqs: 3\nno_prefix_caching: true\ngrace: 1.5\napi-key: [a:one, b:two]\n",
    )
    done = gristmill("serve", "--config", path, "--port", 8)
    assert done.code == 0, done.err
    ((settings, server),) = started
    assert (server.port, server.grace_seconds) == (8, 1.5)
    assert (settings.max_num_seqs, settings.prefix_caching) == (3, False)
    assert [key.tenant for key in server.api_keys] == ["a", "b"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max-num-seq: 3", "unknown option; found max-num-seq; expected max-num-seqs"),
        ("max-num-seqs: many", '--max-num-seqs; found "many"; expected a whole number'),
        ("- a list", "holds no options"),
        ("a: [", "can't read the options"),
        ("port: &a [*a]", "--port"),
        ("config: x.yaml", "unknown option; found config"),
        ("log-format: xml", "--log-format; found xml; expected text or json"),
    ],
)
def test_a_file_with_a_fault_is_refused(
    gristmill: Run, started: list[Any], tmp_path: Path, text: str, message: str
) -> None:
    done = gristmill("serve", "m", "--config", write(tmp_path, text))
    assert (done.code, len(done.err.splitlines())) == (2, 1)
    assert message in done.err


def test_a_file_that_is_not_there_is_said(gristmill: Run, started: list[Any], tmp_path: Path) -> None:
    done = gristmill("serve", "m", "--config", tmp_path / "none.yaml")
    assert done.code == 2
    assert "can't read the options" in done.err


def test_keys_come_from_a_file_and_the_environment(
    gristmill: Run, started: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "keys").write_text("a:one\n")
    monkeypatch.setenv("GRISTMILL_API_KEY", "b:two")
    monkeypatch.setenv("GRISTMILL_ADMIN_TOKEN", "t")
    assert gristmill("serve", "m", "--api-key-file", tmp_path / "keys").code == 0
    ((_, server),) = started
    assert {key.tenant for key in server.api_keys} == {"a", "b"}
    assert server.admin_token == "t"


@pytest.mark.parametrize(
    "arguments",
    [
        ("--grace", "-1"),
        ("--itl-target", "0"),
        ("--max-num-seqs", "0"),
        ("--kv-cache-memory", "much"),
        ("--memory-soft", "2GiB", "--memory-restart", "1GiB"),
        ("--api-key", "two words"),
        ("--log-level", "loud"),
        ("--cors-origin", "https://a.example/"),
        ("--served-model-name", "a", "--served-model-name", "b"),
        ("--served-model-name", ""),
    ],
)
def test_a_value_that_can_not_be_meant_is_one_line(
    gristmill: Run, started: list[Any], arguments: tuple[str, ...]
) -> None:
    done = gristmill("serve", "m", *arguments)
    assert (done.code, len(done.err.splitlines())) == (2, 1), done.err
    assert started == []


@pytest.mark.parametrize(
    ("option", "value", "rest"),
    [
        ("--port", "nan", '; found "nan"; expected a whole number'),
        ("--grace", "", '; found ""; expected a number'),
        ("--stall", "1e400", " is invalid; found inf; expected more than 0"),
        ("--ping-interval", "nan", " is invalid; found nan; expected more than 0"),
        ("--itl-target", "-1", " is invalid; found -1.0; expected more than 0"),
        ("--max-num-seqs", "-1", " is invalid; found -1; expected a whole number of at least 1"),
        ("--max-waiting", "-1", " is invalid; found -1; expected a whole number of at least 0"),
        ("--block-size", "4294967296", " is invalid; found 4294967296; expected at most 1024"),
        ("--kv-cache-memory", "0", " is invalid; found 0; expected a whole number of at least 1"),
        ("--memory", "0", " is invalid; found 0; expected a whole number of at least 1"),
        ("--max-open-per-key", "0", " is invalid; found 0; expected at least 1"),
        ("--threads", "1.5", '; found "1.5"; expected a whole number'),
    ],
)
def test_a_wrong_number_is_told_by_its_option(
    gristmill: Run, started: list[Any], option: str, value: str, rest: str
) -> None:
    done = gristmill("serve", "m", option, value)
    assert (done.code, done.err) == (2, f"error: {option}{rest}\n")
    assert started == []


def test_a_model_is_served_under_the_name_that_is_given(
    gristmill: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    calls: list[tuple[list[str], str]] = []

    def run_server(folders: list[EngineFolder], *rest: object, resolve: Any, **more: object) -> None:
        calls.append(([folder.name for folder in folders], resolve("gpt-b").name))

    def engine_folder(ref: str, **rest: object) -> EngineFolder:
        return EngineFolder(ref, "reference", tmp_path, tmp_path)

    monkeypatch.setattr("gristmill.cli.serve.run_server", run_server)
    monkeypatch.setattr("gristmill.facade.engine_folder", engine_folder)
    names = ("--served-model-name", "gpt-a", "--served-model-name", "gpt-b")
    assert gristmill("serve", "one", "two:v1", *names).code == 0
    assert calls == [(["gpt-a", "gpt-b"], "two:v1")]
