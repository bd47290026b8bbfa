"""Files are whole or absent, and a storage fault is named."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gristmill.runtime.errors import StorageError
from gristmill.runtime.files import canonical_json, make_folder, storage_errors, write_atomic


def test_a_failed_write_keeps_the_old_file_and_leaves_no_temporary_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    write_atomic(path, b"old")

    def fail(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(StorageError, match="No space left"):
        write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_many_threads_may_write_one_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    contents = [bytes([number]) * 1000 for number in range(16)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda data: write_atomic(path, data), contents))
    assert path.read_bytes() in contents
    assert os.listdir(tmp_path) == ["file"]


def test_what_is_no_file_is_not_replaced_by_one(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, tmp_path):
        with pytest.raises(StorageError, match="no file"):
            write_atomic(path, b"data")
    assert pipe.is_fifo()
    assert list(tmp_path.iterdir()) == [pipe]


def test_a_folder_that_can_not_be_made_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="file"):
        make_folder(tmp_path / "file" / "below")


def test_other_errors_pass_through() -> None:
    with pytest.raises(FileNotFoundError), storage_errors(Path("x")):
        raise FileNotFoundError(2, "No such file or directory")


def test_canonical_json_depends_on_the_value_alone() -> None:
    assert (
        canonical_json({"b": 1, "a": "ü"})
        == canonical_json({"a": "ü", "b": 1})
        == b'{"a":"\xc3\xbc","b":1}\n'
    )
    with pytest.raises(ValueError, match="Out of range"):
        canonical_json(float("nan"))
