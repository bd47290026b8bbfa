"""The stage cache: finished once, resumed after a kill, never used when damaged, worked on by one build."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gristmill.pipeline.stages import StageCache, code_version, stage_key
from gristmill.runtime.errors import BusyError, InternalError, StorageError
from gristmill.runtime.files import write_atomic

KEY = stage_key("quantize", {"bits": 4}, "code")
LAYERS = ("layer-0.bin", "layer-1.bin", "more/layer-2.bin")

CHILD = """
import sys, time
from pathlib import Path
from gristmill.pipeline.stages import StageCache
from gristmill.runtime.files import write_atomic
root, key = sys.argv[1:3]
with StageCache(Path(root)).open("quantize", key) as stage:
    for name in ("layer-0.bin", "layer-1.bin"):
        write_atomic(stage.folder / name, name.encode())
    (stage.folder / ".layer-2.bin.1.tmp").write_bytes(b"half")
    print("ready", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def cache(tmp_path: Path) -> StageCache:
    return StageCache(tmp_path / "stages")


def build(cache: StageCache) -> Path:
    with cache.open("quantize", KEY) as stage:
        for name in LAYERS:
            (stage.folder / name).parent.mkdir(exist_ok=True)
            write_atomic(stage.folder / name, name.encode())
        return stage.finish()


def start_child(cache: StageCache) -> subprocess.Popen[str]:
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(cache.root), KEY], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    return child


def test_a_finished_stage_is_found_with_its_files(cache: StageCache) -> None:
    assert cache.finished("quantize", KEY) is None
    folder = build(cache)
    assert cache.finished("quantize", KEY) == folder
    assert [(folder / name).read_text() for name in LAYERS] == list(LAYERS)


def test_a_finished_stage_leaves_neither_lock_nor_partial_folder(cache: StageCache) -> None:
    folder = build(cache)
    assert list(folder.parent.iterdir()) == [folder]


def test_a_stage_without_files_can_be_finished(cache: StageCache) -> None:
    with cache.open("load", KEY) as stage:
        folder = stage.finish()
    assert cache.finished("load", KEY) == folder


def test_an_unfinished_stage_is_not_found_but_its_files_stay(cache: StageCache) -> None:
    with pytest.raises(ZeroDivisionError), cache.open("quantize", KEY) as stage:
        write_atomic(stage.folder / "layer-0.bin", bytes(1 // 0))
    with cache.open("quantize", KEY) as stage:
        write_atomic(stage.folder / "layer-0.bin", b"done")
    assert cache.finished("quantize", KEY) is None
    with cache.open("quantize", KEY) as stage:
        assert (stage.folder / "layer-0.bin").read_bytes() == b"done"


def test_a_killed_build_leaves_its_whole_files_and_no_others(cache: StageCache) -> None:
    child = start_child(cache)
    os.kill(child.pid, signal.SIGKILL)
    child.communicate()
    assert cache.finished("quantize", KEY) is None
    with cache.open("quantize", KEY) as stage:
        assert sorted(os.listdir(stage.folder)) == ["layer-0.bin", "layer-1.bin"]
        stage.finish()
    assert cache.finished("quantize", KEY) is not None


def test_a_second_build_of_one_stage_is_told_who_has_it(cache: StageCache) -> None:
    child = start_child(cache)
    try:
        with (
            pytest.raises(
                BusyError, match=rf"stage quantize .*found pid {child.pid} .*; wait for that build"
            ),
            cache.open("quantize", KEY),
        ):
            pass
        with cache.open("quantize", stage_key("quantize", {"bits": 8}, "code")):
            pass
    finally:
        child.kill()
        child.communicate()


@pytest.mark.parametrize("name", ["layer-1.bin", "index.json"])
@pytest.mark.parametrize("fault", ["missing", "cut", "flipped"])
def test_a_damaged_stage_is_rebuilt_and_never_used(cache: StageCache, name: str, fault: str) -> None:
    path = build(cache) / name
    data = path.read_bytes()
    path.unlink()
    if fault != "missing":
        path.write_bytes(data[:-1] if fault == "cut" else data[:-2] + bytes([data[-2] ^ 1]) + data[-1:])
    assert cache.finished("quantize", KEY) is None
    with cache.open("quantize", KEY) as stage:
        left = {file.name for file in stage.folder.rglob("*.bin")}
        assert left == ({"layer-0.bin", "layer-2.bin"} if name == "layer-1.bin" else set())
    build(cache)
    assert cache.finished("quantize", KEY) is not None


def test_a_file_that_the_index_does_not_list_damages_a_stage(cache: StageCache) -> None:
    (build(cache) / "extra").touch()
    assert cache.finished("quantize", KEY) is None


def test_a_full_disk_at_the_end_of_a_stage_loses_nothing(cache: StageCache) -> None:
    with cache.open("quantize", KEY) as stage:
        write_atomic(stage.folder / "layer-0.bin", b"layer")
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (8, limits[1]))
        try:
            with pytest.raises(StorageError):
                stage.finish()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert cache.finished("quantize", KEY) is None
        assert (stage.finish() / "layer-0.bin").read_bytes() == b"layer"


def test_a_sound_stage_is_kept_when_it_is_built_again(cache: StageCache) -> None:
    """Another build may be reading it."""
    file = build(cache) / LAYERS[0]
    before = file.stat().st_ino
    build(cache)
    assert file.stat().st_ino == before
    assert list(file.parent.parent.iterdir()) == [file.parent]


def test_a_key_depends_on_stage_inputs_and_code_alone() -> None:
    key = stage_key("quantize", {"bits": 4, "group": 64}, "code")
    assert key == stage_key("quantize", {"group": 64, "bits": 4}, "code")
    others = {
        stage_key("validate", {"bits": 4, "group": 64}, "code"),
        stage_key("quantize", {"bits": 4, "group": 32}, "code"),
        stage_key("quantize", {"bits": 4, "group": 64}, "edoc"),
        stage_key("quantize", {"bits": "4", "group": 64}, "code"),
    }
    assert len(others | {key}) == 5


def make_package(folder: Path, text: str) -> None:
    (folder / "inner").mkdir(parents=True, exist_ok=True)
    for name in ("__init__.py", "inner/__init__.py"):
        (folder / name).write_text("")
    (folder / "inner" / "part.py").write_text(text)


def test_the_code_version_follows_the_source_and_not_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = []
    for place, text in (("one", "x = 1\n"), ("two", "x = 1\n"), ("three", "x = 2\n")):
        make_package(tmp_path / place / "mill_sample", text)
        with monkeypatch.context() as patch:
            patch.syspath_prepend(tmp_path / place)
            versions.append(code_version(["mill_sample"]))
            sys.modules.pop("mill_sample", None)
    assert versions[0] == versions[1] != versions[2]


def test_the_code_version_of_our_own_packages_is_stable_and_distinct() -> None:
    versions = {code_version([name]) for name in ("gristmill.artifacts", "gristmill.pipeline.stages")}
    assert len(versions) == 2
    both = ["gristmill.artifacts", "gristmill.pipeline.stages"]
    assert code_version(both) == code_version(both[::-1])


def test_a_module_without_source_is_a_fault_of_ours() -> None:
    with pytest.raises(InternalError, match=r"no source files of module gristmill\.nothing"):
        code_version(["gristmill.nothing"])
