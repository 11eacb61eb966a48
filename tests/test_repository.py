"""The repository's own promises: generated code is fresh, linters pass, make explains itself, versions are pinned."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from indexer.settings import IndexSettings
from services.settings import check_binds, load_settings

ROOT = Path(__file__).resolve().parent.parent
GENERATED = ("feed_pb2.py", "feed_pb2.pyi", "feed_pb2_grpc.py", "feed_pb2_grpc.pyi")
ARROW = re.compile(r"^([a-z-]+):(?!=)", re.MULTILINE)


def make(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs make with the environment of these tests, which is taken as installed, whatever its stamps say."""
    venv = sys.prefix
    installed = ["-o", f"{venv}/.installed-dev", "-o", f"{venv}/.installed-demo", f"VENV={venv}"]
    # A make above this one must not hand down its flags.
    environment = {
        name: value for name, value in os.environ.items() if name not in {"MAKEFLAGS", "MAKELEVEL", "MFLAGS"}
    }
    return subprocess.run(
        ["make", "--no-print-directory", *installed, *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_generated_protobuf_code_is_what_protoc_makes_of_the_proto(tmp_path: Path) -> None:
    pytest.importorskip("grpc_tools", reason="grpcio-tools (extra dev) generates the code that this test compares with")
    result = make("proto", f"PROTO_OUT={tmp_path}")
    assert result.returncode == 0, result.stdout + result.stderr
    stale = [
        name for name in GENERATED if (tmp_path / "protos" / name).read_text() != (ROOT / "protos" / name).read_text()
    ]
    assert stale == [], f"protos/{stale} differ from protos/feed.proto: run `make proto`"


@pytest.mark.parametrize("target", ["proto-lint", "deploy-lint"])
def test_linters_pass(target: str) -> None:
    result = make(target)
    assert result.returncode == 0, result.stdout + result.stderr


def test_make_alone_lists_every_target_with_what_it_does() -> None:
    targets = set(ARROW.findall((ROOT / "Makefile").read_text()))
    listed = dict(line.split(maxsplit=1) for line in re.sub(r"\x1b\[\d*m", "", make().stdout).splitlines())
    assert set(listed) == targets
    assert {"demo", "test", "check"} <= targets
    assert all(len(help_text) > 10 for help_text in listed.values())


def test_every_direct_dependency_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *(one for extra in ("cpu", "index", "demo", "dev") for one in extras[extra])]
    pinned = {line.split("==")[0] for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line}
    names = {re.split(r"[^A-Za-z0-9._-]", one, maxsplit=1)[0].lower().replace("_", "-") for one in wanted}
    assert names - pinned == set()


def test_the_settings_of_the_compose_file_start_a_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEEDLINE_CONSOLE__WRITE_TOKEN", "a token")
    monkeypatch.setenv("FEEDLINE_STATE__URL", "redis://:password@state:6379/0")
    settings = load_settings(ROOT / "deploy" / "feedline.toml")
    check_binds(settings)
    mounted = f"snapshots:{settings.snapshots.folder}:ro"
    assert mounted in (ROOT / "deploy" / "compose.yaml").read_text()
    vectors = IndexSettings.model_validate(settings.index).vector_store
    assert f"models:{vectors.parent}" in (ROOT / "deploy" / "compose.yaml").read_text(), "all else is read-only"
    assert settings.serve.lame_duck_s + settings.serve.drain_s < 30, "compose's stop_grace_period"
