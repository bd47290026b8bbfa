"""The arrows between layers, and what the lower layers may not know."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOLDERS = ("pipeline", "calibration", "runtime", "recipes", "artifacts")


def test_imports_follow_the_arrows() -> None:
    """In a process of its own: the linter's set-up silences the loggers of the one that it runs in."""
    command = [
        str(Path(sys.executable).with_name("lint-imports")),
        "--config",
        "pyproject.toml",
        "--no-cache",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_file_is_longer_than_400_lines() -> None:
    sources = [
        path for folder in (*FOLDERS, "src/gristmill/cli", "tests") for path in (ROOT / folder).rglob("*.py")
    ]
    assert sources
    long = {str(path): n for path in sources if (n := len(path.read_text().splitlines())) > 400}
    assert not long


def test_every_folder_is_one_import_package() -> None:
    for folder in FOLDERS:
        link = ROOT / "src" / "gristmill" / folder
        assert link.is_symlink()
        assert link.resolve() == ROOT / folder


def test_serving_modules_import_without_torch() -> None:
    """The base installation has no torch: only the reference executor may need it."""
    script = (
        "import sys; sys.modules['torch'] = None; sys.modules['transformers'] = None\n"
        "import gristmill, gristmill.runtime.engine, gristmill.runtime.server.app, gristmill.cli.app\n"
        "import gristmill.recipes.load, gristmill.artifacts.store\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
