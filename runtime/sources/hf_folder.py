"""A Hugging Face folder: `config.json`, safetensors weights, a tokenizer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gristmill.runtime.errors import ModelError
from gristmill.runtime.safetensors_files import INDEX_FILE, SINGLE_FILE, SafetensorsFolder
from gristmill.runtime.sources.base import SIDE_FILES, ModelSource, Tensor
from gristmill.runtime.sources.digest import content_digest

__all__ = ["HfFolder", "is_model_folder", "require_unquantized"]

_CONFIG = "config.json"
_QUANTIZATION_FILES = {
    "hf_quant_config.json": "modelopt",
    "quantize_config.json": "gptq",
    "quant_config.json": "awq",
}
"""Files beside `config.json` that say a model is quantized, and the tool that writes each."""
_PACKED_SUFFIXES = (
    ".weight_packed",
    ".qweight",
    ".weight_scale",
    ".weight_scale_inv",
    ".weight_quantizer._amax",
)
_TO_SAFETENSORS = (
    "convert it: AutoModelForCausalLM.from_pretrained(folder).save_pretrained(other) with transformers"
)
_TO_TOKENIZER_JSON = (
    "convert it: AutoTokenizer.from_pretrained(folder).save_pretrained(folder) with transformers"
)


class HfFolder:
    """A ModelSource over a folder; everything but tensor data and side files is read and checked at once.

    `revision` is the commit, for a folder that came from the Hugging Face hub.
    Raises ModelError for a folder that lacks a part or has a damaged one.
    """

    def __init__(self, folder: Path, name: str | None = None, revision: str | None = None) -> None:
        self.folder = folder
        self.revision = revision
        self._name = name if name is not None else str(folder)
        if not folder.is_dir():
            raise ModelError(f"model folder {folder} does not exist")
        if not (folder / _CONFIG).is_file():
            raise _no_config(folder)
        self._config = _read_json_object(folder / _CONFIG)
        self._weights = _open_weights(folder)
        _require_tokenizer(folder)

    @property
    def name(self) -> str:
        """The source as the user wrote it."""
        return self._name

    @property
    def config(self) -> Mapping[str, Any]:
        """The folder's `config.json`."""
        return self._config

    def tensor_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Every tensor of the weight files."""
        return {name: self._weights.shape(name) for name in self._weights.names()}

    def load(self, name: str) -> Tensor:
        """One tensor in the type it is stored in, read-only. Raises ModelError."""
        return self._weights.load(name)

    def side_files(self) -> Mapping[str, bytes]:
        """Those of `SIDE_FILES` that the folder has."""
        paths = {name: self.folder / name for name in SIDE_FILES}
        return {name: _read(path) for name, path in paths.items() if path.is_file()}

    def digest(self) -> str:
        """`sha256:...` over configuration, side files, weight files and which of them holds which tensor."""
        layout = {name: self._weights.entry(name).file.name for name in self._weights.names()}
        weights = {file: self.folder / file for file in sorted(set(layout.values()))}
        return content_digest(self._config, self.side_files(), weights, layout)


def is_model_folder(folder: Path) -> bool:
    """Whether `folder` has a configuration and safetensors weights, whatever their state."""
    has_weights = (folder / SINGLE_FILE).is_file() or (folder / INDEX_FILE).is_file()
    return has_weights and (folder / _CONFIG).is_file()


def require_unquantized(source: ModelSource) -> None:
    """Refuse a source whose weights are quantized already, naming the method. Raises ModelError.

    GGUF sources pass: they are dequantized as they are read.
    """
    method = _declared_method(source.config)
    if method is None and isinstance(source, HfFolder):
        method = _method_from_files(source.folder)
    if method is None:
        packed = next((name for name in source.tensor_shapes() if name.endswith(_PACKED_SUFFIXES)), None)
        method = f"packed tensors such as {packed}" if packed else None
    if method is not None:
        raise ModelError(
            f"{source.name} is already quantized",
            found=method,
            expected="float weights",
            hint="start from the original model",
        )


def _declared_method(config: Mapping[str, Any]) -> str | None:
    nested = config.get("text_config")
    for scope in (config, nested if isinstance(nested, Mapping) else {}):
        for key in ("quantization_config", "compression_config"):
            if scope.get(key):
                return _method_name(scope[key], "bitsandbytes")  # the one method that need not be named
    return None


def _method_from_files(folder: Path) -> str | None:
    for name, tool in _QUANTIZATION_FILES.items():
        if (folder / name).is_file():
            return f"{_method_name(_read_json_object(folder / name), tool)} in {name}"
    return None


def _method_name(settings: Any, default: str) -> str:
    """What a quantization configuration calls itself; ModelOpt nests its own one level deeper."""
    if not isinstance(settings, Mapping):
        return default
    names = (settings.get(key) for key in ("quant_method", "quant_algo", "method"))
    name = next((str(name) for name in names if name), None)
    return name or _method_name(settings.get("quantization"), default)


def _no_config(folder: Path) -> ModelError:
    ggufs = sorted(path.name for path in folder.glob("*.gguf"))
    if ggufs:
        return ModelError(
            f"{folder} has no {_CONFIG}", found=", ".join(ggufs), hint="give the path of the GGUF file itself"
        )
    names = sorted(path.name for path in folder.iterdir())
    listing = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
    return ModelError(
        f"{folder} is not a model folder", found=listing or "an empty folder", expected=f"a {_CONFIG} in it"
    )


def _open_weights(folder: Path) -> SafetensorsFolder:
    if not is_model_folder(folder):
        pickled = sorted(path.name for kind in ("*.bin", "*.pth", "*.pt") for path in folder.glob(kind))
        if pickled:
            raise ModelError(
                f"{folder} has its weights in pickle files",
                found=", ".join(pickled[:4]),
                expected="safetensors",
                hint=_TO_SAFETENSORS,
            )
    return SafetensorsFolder(folder)


def _require_tokenizer(folder: Path) -> None:
    if (folder / "tokenizer.json").is_file():
        return
    older = [name for name in ("tokenizer.model", "vocab.json", "merges.txt") if (folder / name).is_file()]
    raise ModelError(
        f"{folder} has no tokenizer.json",
        found=", ".join(older) or "no tokenizer at all",
        hint=_TO_TOKENIZER_JSON if older else "copy the tokenizer of the model into the folder",
    )


def _read_json_object(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(_read(path), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path} is not valid JSON", found=error) from error
    if not isinstance(value, dict):
        raise ModelError(f"{path}", found=type(value).__name__, expected="a JSON object")
    return value


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name}, which JSON does not have")


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ModelError(f"can't read {path}", found=error.strerror) from error
