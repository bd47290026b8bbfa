"""A model id of the Hugging Face hub as a folder in its local cache."""

from __future__ import annotations

import re
from pathlib import Path

from gristmill.runtime.errors import GristmillError, ModelError, OutsideError
from gristmill.runtime.sources.base import SIDE_FILES
from gristmill.runtime.sources.hf_folder import HfFolder

__all__ = ["is_model_id", "open_hub_model"]

_MODEL_ID = re.compile(r"(?P<repository>[\w-][\w.-]*/[\w-][\w.-]*)(@(?P<revision>[\w.-][\w./-]*))?")
_FILES = ["config.json", "*.safetensors", "model.safetensors.index.json", "*quant*_config.json", *SIDE_FILES]


def is_model_id(model: str) -> bool:
    """Whether `model` is written like `org/name` or `org/name@revision`."""
    return _MODEL_ID.fullmatch(model) is not None


def open_hub_model(model: str) -> HfFolder:
    """The model `org/name[@revision]`, from the cache if it is there and whole, else downloaded first.

    Raises OutsideError if the hub can't be reached or huggingface_hub is not
    installed, ModelError if there is no such model or it is not accessible.
    """
    match = _MODEL_ID.fullmatch(model)
    assert match is not None, "the caller asks is_model_id first"
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError
    except ImportError as error:
        raise OutsideError(
            f"{model} is a Hugging Face id and huggingface_hub is not installed",
            hint="pip install huggingface_hub, or download the model and give its folder",
        ) from error

    def snapshot(*, local_only: bool) -> HfFolder:
        repository, revision = match["repository"], match["revision"]
        path = Path(
            snapshot_download(
                repository, revision=revision, allow_patterns=_FILES, local_files_only=local_only
            )
        )
        return HfFolder(path, name=model, revision=path.name)

    try:
        return snapshot(local_only=True)
    except (LocalEntryNotFoundError, HFValidationError) as error:
        cached: Exception = error
    except ModelError as error:  # perhaps only some of its files were downloaded
        cached = error
    try:
        return snapshot(local_only=False)
    except (OSError, HFValidationError) as error:  # the library's network errors are OSErrors
        raise (cached if isinstance(cached, ModelError) else _explained(model, error)) from error


def _explained(model: str, error: Exception) -> GristmillError:
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    if isinstance(error, GatedRepoError):
        return ModelError(
            f"{model} is gated", hint="accept its terms on its page and log in with `hf auth login`"
        )
    if isinstance(error, RepositoryNotFoundError | RevisionNotFoundError | HFValidationError):
        return ModelError(
            f"{model} is neither a local path nor a model of the Hugging Face hub",
            found=str(error).partition("\n")[0],
            hint="check the spelling",
        )
    return OutsideError(
        f"can't get {model} from the Hugging Face hub, and no such local path exists",
        found=str(error).partition("\n")[0],
        hint="check the network, or download the model elsewhere and give its folder",
    )
