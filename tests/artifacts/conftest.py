"""A small artifact to stage, commit and look at."""

from __future__ import annotations

import os
import tempfile
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gristmill.artifacts.artifact import Artifact
from gristmill.artifacts.manifest import Manifest
from gristmill.artifacts.manifest_bytes import MANIFEST_FILE, read_manifest
from gristmill.artifacts.record import BuildRecord
from gristmill.artifacts.store import Store
from gristmill.runtime.errors import EXIT_DONE, EXIT_INTERNAL, EXIT_INTERRUPTED, GristmillError
from gristmill.runtime.files import storage_errors

SAMPLE = Path(__file__).parent.parent / "golden" / "artifact_v1"

Commit = Callable[..., Artifact]
Fork = Callable[[Callable[[], object]], int]


@pytest.fixture
def sample_folder() -> Path:
    """An artifact of schema version 1 whose bytes never change."""
    return SAMPLE


@pytest.fixture
def sample_manifest() -> Manifest:
    """Its manifest as a build hands it to `commit`: without files."""
    return replace(read_manifest(SAMPLE)[0], files={})


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def commit(sample_manifest: Manifest) -> Commit:
    """`commit(store, payload, tag, name, record)` commits the sample, with `payload` as one more file."""

    sample = {path.relative_to(SAMPLE): path.read_bytes() for path in SAMPLE.rglob("*") if path.is_file()}
    del sample[Path(MANIFEST_FILE)]

    def run(
        store: Store,
        payload: bytes = b"",
        tag: str = "latest",
        name: str | None = None,
        record: BuildRecord | None = None,
    ) -> Artifact:
        contents = sample | ({Path("checkpoint/payload.bin"): payload} if payload else {})
        with store.staging() as folder:
            with storage_errors(folder):
                for path, data in contents.items():
                    (folder / path).parent.mkdir(parents=True, exist_ok=True)
                    (folder / path).write_bytes(data)
            return store.commit(folder, sample_manifest, tag=tag, name=name, record=record)

    return run


@pytest.fixture
def shm_path(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where there is one, for tests that sync hundreds of times."""
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


@pytest.fixture
def fork() -> Fork:
    """`fork(body)` runs `body` in a child process, which ends with the command line's exit code; its pid."""

    def run(body: Callable[[], object]) -> int:
        pid = os.fork()
        if pid:
            return pid
        code = EXIT_INTERNAL
        try:
            body()
            code = EXIT_DONE
        except KeyboardInterrupt:
            code = EXIT_INTERRUPTED
        except GristmillError as error:
            code = error.exit_code
        finally:
            if code == EXIT_INTERNAL:
                traceback.print_exc()
            os._exit(code)

    return run
