"""Tiny engines, compiled once a session, and executors over them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gristmill.runtime.checkpoint import open_checkpoint
from gristmill.runtime.executors.native.engine_file import EngineFile
from gristmill.runtime.executors.native.executor import NativeExecutor
from tests.runtime.executors.native.tiny_engines import (
    OpenExecutor,
    TinyEngine,
    compiled,
    open_executor,
    write_tiny,
)
from tests.tiny_checkpoints import write_folder


@pytest.fixture(scope="session")
def tiny_engine(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], TinyEngine]:
    """Makes the engine of a shape and a scheme of `tiny_engines`, once."""
    made: dict[tuple[str, str], TinyEngine] = {}

    def make(shape: str, scheme: str) -> TinyEngine:
        if (shape, scheme) not in made:
            folder = tmp_path_factory.mktemp("tiny")
            checkpoint = write_tiny(folder, shape, scheme)
            made[shape, scheme] = TinyEngine(
                compiled(checkpoint, folder / "engine"), open_checkpoint(checkpoint)
            )
        return made[shape, scheme]

    return make


@pytest.fixture(scope="session")
def family_engine(
    tmp_path_factory: pytest.TempPathFactory, tiny_model: Callable[[str], Any]
) -> Callable[[str], TinyEngine]:
    """Makes the engine of a family's model, in float32 but for its head, once."""
    made: dict[str, TinyEngine] = {}

    def make(family: str) -> TinyEngine:
        if family not in made:
            model, folder = tiny_model(family), tmp_path_factory.mktemp("family")
            config = {**json.loads(model.oracle.config.to_json_string()), "dtype": "float32"}
            checkpoint = write_folder(folder / "plain", config, model.weights.tensors)
            made[family] = TinyEngine(compiled(checkpoint, folder / "engine"), model.weights)
        return made[family]

    return make


@pytest.fixture
def open_native() -> Iterator[OpenExecutor]:
    """`open_executor`; what it opened is closed after the test."""
    opened: list[NativeExecutor] = []

    def open_one(engine: EngineFile, **settings: Any) -> NativeExecutor:
        opened.append(open_executor(engine, **settings))
        return opened[-1]

    yield open_one
    for executor in opened:
        executor.close()
