"""`plan`: what a build will make and take, before it reads a weight."""

from __future__ import annotations

from gristmill import facade
from gristmill.cli.options import BuildMemoryOption, JsonOption, RecipeArgument, SetOption, StoreOption
from gristmill.cli.output import print_fields, print_json
from gristmill.pipeline.disk import free_disk, require_disk
from gristmill.pipeline.plan import require_memory
from gristmill.pipeline.preflight import Preflight
from gristmill.runtime.memory import free_memory
from gristmill.runtime.units import human_bytes, parse_size

__all__ = ["plan"]


def plan(
    recipe: RecipeArgument,
    overrides: SetOption = None,
    memory: BuildMemoryOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check a recipe, its model and data, and say what building it makes and takes; no weight is read.

    Ends as `build` does where memory or disk space are too small to build it from the beginning.
    """
    limit = parse_size(memory) if memory is not None else None
    planned = facade.plan(recipe, overrides=overrides or (), store=store, memory_limit=limit)
    folder = facade.default_store(store).layout.root
    free = {"memory": free_memory().size, "disk": free_disk(folder)}
    if as_json:
        print_json({**planned.to_dict(), "free": free})
    else:
        told = ", ".join(f"{name} {human_bytes(size)}" for name, size in free.items())
        print_fields({**_fields(planned), "free": told})
    require_memory(planned.memory, limit)
    require_disk(planned.disk.total, folder)


def _fields(planned: Preflight) -> dict[str, str]:
    """Aligned lines for a person."""
    told = planned.to_dict()
    model, quantize, data = told["model"], told["quantize"], told["calibration"]
    linears = ", ".join(f"{count} linears {scheme}" for scheme, count in quantize["linears"].items())
    bits = quantize["bits_per_weight"]
    windows = [f"{entry['name']} {entry['tokens']:,} tokens" for entry in told["validation"]]
    tasks = [f"{entry['name']} {entry['items']:,} items" for entry in told["tasks"]]
    return {
        "model": f"{model['architecture']}, {model['parameters'] / 1e6:,.1f} M parameters, "
        f"{human_bytes(model['size'])}, {model['layers']} layers, layer {model['largest_layer']} the largest",
        "quantize": linears + (f"; {bits:.2f} bits a weight" if bits else ""),
        "calibrate": f"{data['sequences']} sequences, {data['tokens']:,} tokens" if data else "no data",
        "validate": ", ".join((*windows, *tasks)) or "nothing",
        "memory": planned.memory.line().removeprefix("memory: "),
        "disk": planned.disk.line().removeprefix("disk: "),
    }
