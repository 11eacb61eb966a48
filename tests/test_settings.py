from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from services.errors import StartError
from services.settings import Budget, Settings, check_binds, is_loopback, load_settings


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith("FEEDLINE_"):
            monkeypatch.delenv(name)


def load(folder: Path, text: str) -> Settings:
    (folder / "feedline.toml").write_text(text, encoding="utf-8")
    return load_settings(folder / "feedline.toml")


def refused(folder: Path, text: str) -> list[str]:
    with pytest.raises(StartError) as error:
        load(folder, text)
    return str(error.value).splitlines()


def test_the_defaults_are_valid_and_stay_on_this_machine() -> None:
    settings = load_settings(None)
    check_binds(settings)
    assert is_loopback(settings.serve.host)
    assert is_loopback(settings.console.host)
    assert settings.budget.scoring_ms == 147


def test_settings_are_frozen() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        load_settings(None).serve.port = 1


def test_the_file_is_read_and_the_environment_stands_above_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "[serve]\nport = 1000\npage_size = 7\n[scoring]\nthreads = 2\n"
    assert (load(tmp_path, text).serve.port, load(tmp_path, text).serve.page_size) == (1000, 7)
    monkeypatch.setenv("FEEDLINE_SERVE__PORT", "2000")
    settings = load(tmp_path, text)
    assert (settings.serve.port, settings.serve.page_size, settings.scoring.threads) == (2000, 7, 2)


def test_a_whole_section_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEEDLINE_LOG", '{"level": "debug"}')
    assert load_settings(None).log.level == "debug"


def test_zero_and_false_and_empty_are_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEEDLINE_SERVE__PORT", "0")
    monkeypatch.setenv("FEEDLINE_CACHE__ENABLED", "false")
    monkeypatch.setenv("FEEDLINE_STATE__URL", "")
    text = "[serve]\nport = 5\nlame_duck_s = 0\n[snapshots]\nwatch_s = 0\n[scoring]\nmax_queue_delay_ms = 0\n"
    text += "prefetch_share = 0\n[cache]\nlocal_bytes = 0\njitter = 0\n[state]\nurl = 'redis://x'\n"
    settings = load(tmp_path, text)
    assert (settings.serve.port, settings.serve.lame_duck_s, settings.snapshots.watch_s) == (0, 0, 0)
    assert (settings.scoring.max_queue_delay_ms, settings.scoring.prefetch_share) == (0, 0)
    assert (settings.cache.enabled, settings.cache.local_bytes, settings.cache.jitter) == (False, 0, 0)
    assert settings.state.url == ""


BAD = [
    ("serve", "port", 65536, "65535"),
    ("serve", "port", -1, "0"),
    ("serve", "port", "'many'", "integer"),
    ("serve", "port", 1.5, "integer"),
    ("serve", "port", "nan", "finite"),
    ("serve", "page_size", 0, "1"),
    ("serve", "page_size", 101, "100"),
    ("serve", "max_page_depth", 0, "1"),
    ("serve", "max_page_depth", 2001, "2000"),
    ("serve", "exact_scan_items", -1, "0"),
    ("serve", "lame_duck_s", -0.1, "0"),
    ("serve", "lame_duck_s", 301, "300"),
    ("serve", "drain_s", "inf", "finite"),
    ("serve", "insecure", "'maybe'", "boolean"),
    ("budget", "page_ms", -1, "0"),
    ("budget", "page_ms", 60_001, "60000"),
    ("budget", "network_ms", "nan", "finite"),
    ("scoring", "max_in_flight", 0, "1"),
    ("scoring", "max_in_flight", 10_001, "10000"),
    ("scoring", "prefetch_share", 1.1, "1"),
    ("scoring", "prefetch_share", -0.1, "0"),
    ("scoring", "max_queue", 0, "1"),
    ("scoring", "max_batch", 0, "1"),
    ("scoring", "max_batch", 1025, "1024"),
    ("scoring", "threads", 0, "1"),
    ("scoring", "threads", 257, "256"),
    ("console", "port", 70_000, "65535"),
    ("console", "enabled", "'perhaps'", "boolean"),
    ("snapshots", "watch_s", -1, "0"),
    ("snapshots", "folder", 3, "path"),
    ("cache", "prefix", "'a b'", "pattern"),
    ("cache", "prefix", "''", "pattern"),
    ("cache", "soft_s", 0, "0"),
    ("cache", "jitter", 0.6, "0.5"),
    ("cache", "pool", 0, "1"),
    ("cache", "local_bytes", -1, "0"),
    ("state", "session_events", 0, "1"),
    ("state", "session_events", 1001, "1000"),
    ("state", "max_stream_length", 15, "16"),
    ("state", "timeout_ms", -1, "0"),
    ("state", "write_timeout_ms", 0, "0"),
    ("state", "session_s", 10**12, "315360000"),
    ("state", "event_id_s", 10**12, "315360000"),
    ("cache", "timeout_ms", 0, "0"),
    ("log", "level", "'loud'", "'debug', 'info', 'warning' or 'error'"),
    ("log", "format", "'xml'", "'console' or 'json'"),
]


@pytest.mark.parametrize(("section", "key", "value", "range_"), BAD)
def test_a_bad_value_is_one_line_with_its_key_its_range_and_what_was_given(
    tmp_path: Path, section: str, key: str, value: Any, range_: str
) -> None:
    (line,) = refused(tmp_path, f"[{section}]\n{key} = {value}\n")
    assert line.startswith(f"settings {tmp_path / 'feedline.toml'}: {section}.{key}: ")
    message, _, given = line.partition(" (given: ")
    assert range_ in message
    assert str(value) in given


def test_every_bad_key_has_a_line_of_its_own(tmp_path: Path) -> None:
    lines = refused(tmp_path, "[serve]\nport = -1\npage_size = 0\nprot = 1\n[sreve]\nport = 1\n[log]\nlevel = 'x'\n")
    keys = {re.sub(r"^settings .*?\.toml: ([a-z_.]+): .*", r"\1", line) for line in lines}
    assert keys == {"serve.port", "serve.page_size", "serve.prot", "sreve", "log.level"}
    assert len(lines) == 5


@pytest.mark.parametrize(
    "text", ["[sreve]\nport = 1", "port = 1", "[serve]\nprot = 1", "_env_file = 'x'", "_cli_parse_args = true"]
)
def test_an_unknown_key_is_refused(tmp_path: Path, text: str) -> None:
    (line,) = refused(tmp_path, text)
    assert line.endswith(": unknown key")


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("FEEDLINE_SERVE__PROT", "serve.prot"),
        ("FEEDLINE_SREVE__PORT", "FEEDLINE_SREVE__PORT"),
        ("FEEDLINE_SERVE__PORT__X", "serve.port"),
    ],
)
def test_a_misspelt_name_in_the_environment_is_refused(monkeypatch: pytest.MonkeyPatch, name: str, key: str) -> None:
    monkeypatch.setenv(name, "1")
    with pytest.raises(StartError, match=f"^settings from the environment: {key}: ") as error:
        load_settings(None)
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize("name", ["FEEDLINE_PORT", "FEEDLINE_SERVICE_HOST", "FEEDLINE_PORT_50051_TCP", "OTHER__X"])
def test_names_that_kubernetes_sets_for_a_service_called_feedline_are_let_be(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "tcp://10.0.0.1:50051")
    assert load_settings(None) == Settings()


def test_a_bad_value_in_the_environment_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEEDLINE_SERVE__PORT", "70000")
    with pytest.raises(StartError, match=r"^settings from the environment: serve\.port: .* 65535 \(given: '70000'\)$"):
        load_settings(None)


def test_a_section_in_the_environment_that_is_not_json_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEEDLINE_SERVE", "garbage")
    with pytest.raises(StartError, match=r'^settings from the environment: .*"serve".*$'):
        load_settings(None)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[budget]\npage_ms = 60\n", "budget: 60 - 20 - 25 - 8 = 7 ms are left for scoring: more than fallback_ms"),
        ("[budget]\npage_ms = 63\n", "budget: 63 - 20 - 25 - 8 = 10 ms are left"),
        ("[cache]\nhard_s = 10\n", "cache: hard_s (10) must not be below soft_s (300)"),
    ],
)
def test_values_that_do_not_go_together_are_one_line(tmp_path: Path, text: str, line: str) -> None:
    (got,) = refused(tmp_path, text)
    assert line in got


def test_a_budget_with_a_millisecond_to_spare_is_valid() -> None:
    assert Budget(page_ms=64).scoring_ms == 11


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"[serve", "not TOML"),
        (b"\xff", "not TOML"),
        (b"[serve]\nport = 1\nport = 2", "not TOML"),
        (None, "No such file"),
    ],
)
def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path, data: bytes | None, why: str) -> None:
    path = tmp_path / "feedline.toml"
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(StartError, match=re.escape(f"settings {path}: {why}")) as error:
        load_settings(path)
    assert len(str(error.value).splitlines()) == 1


def test_a_folder_is_not_a_file_of_settings(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="Is a directory"):
        load_settings(tmp_path)


def test_the_sections_of_the_nightly_job_are_passed_on_as_they_are(tmp_path: Path) -> None:
    assert load(tmp_path, "[index]\nfloor = 0.9\n[index.columns]\nid = 'sku'\n").index == {
        "floor": 0.9,
        "columns": {"id": "sku"},
    }


def test_the_settings_of_the_compose_file_are_valid() -> None:
    load_settings(Path(__file__).parent.parent / "deploy" / "feedline.toml")


def binds(**sections: dict[str, Any]) -> None:
    check_binds(Settings.model_validate(sections))


@pytest.mark.parametrize(
    ("sections", "key"),
    [
        ({"serve": {"host": "0.0.0.0"}}, "serve.host"),
        ({"serve": {"host": "::"}}, "serve.host"),
        ({"serve": {"host": "feed.example"}}, "serve.host"),
        ({"serve": {"tls_certificate": "a.pem"}}, "serve.tls_certificate and serve.tls_key"),
        ({"serve": {"tls_key": "a.key"}}, "serve.tls_certificate and serve.tls_key"),
        ({"serve": {"tls_client_ca": "ca.pem"}}, "serve.tls_client_ca"),
        ({"console": {"host": "0.0.0.0"}}, "console.host"),
    ],
)
def test_a_port_open_to_the_network_unprotected_is_refused_by_key(sections: dict[str, Any], key: str) -> None:
    with pytest.raises(StartError, match=f"^{re.escape(key)}"):
        binds(**sections)


def test_protected_or_allowed_binds_are_let_be() -> None:
    binds(serve={"host": "0.0.0.0", "insecure": True}, console={"host": "0.0.0.0", "write_token": "t"})
    binds(serve={"host": "0.0.0.0", "tls_certificate": "a.pem", "tls_key": "a.key", "tls_client_ca": "ca.pem"})
    binds(console={"host": "0.0.0.0", "enabled": False})


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_loopback(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["", "0.0.0.0", "::", "10.0.0.1", "localhost.example", "127.0.0.1.example", "0"])
def test_not_loopback(host: str) -> None:
    assert not is_loopback(host)


def test_every_section_refuses_unknown_keys_and_is_frozen() -> None:
    sections = [field.annotation for name, field in Settings.model_fields.items() if name != "index"]
    for section in sections:
        assert isinstance(section, type)
        assert issubclass(section, BaseModel)
        assert section.model_config["frozen"]
        assert section.model_config["extra"] == "forbid"


@pytest.mark.parametrize("moment", ["2026-03-01 12:00:00", "2026-03-01T13:00:00+01:00"])
def test_a_clock_that_stands_still_is_given_in_utc_where_no_zone_is_said(tmp_path: Path, moment: str) -> None:
    (tmp_path / "feedline.toml").write_text(f'[serve]\nas_of = "{moment}"\n[retrieval]\nmode = "personal"\n')
    settings = load_settings(tmp_path / "feedline.toml")
    assert settings.serve.now() == settings.serve.now() == 1_772_366_400
    assert settings.retrieval.mode == "personal"
    assert Settings().serve.now is time.time
