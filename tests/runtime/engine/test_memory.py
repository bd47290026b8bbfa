"""The memory plan: sizes add up, limits hold, too little is said with numbers."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from gristmill.runtime.architectures import plan_model
from gristmill.runtime.errors import InputError, OutsideError
from gristmill.runtime.memory import FreeMemory, MemoryPlan, free_memory, largest_processes, plan_memory
from gristmill.runtime.model_plan import ModelPlan
from gristmill.runtime.settings import EngineSettings

MIB = 1 << 20
WEIGHTS = 200 * MIB


LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 1000,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}


@pytest.fixture(scope="module")
def plan() -> ModelPlan:
    """A Llama with 8 KiB of keys and values a token in bfloat16, 8 MiB for a context."""
    return plan_model(LLAMA)


def mixture(top_k: int) -> ModelPlan:
    experts = {"num_experts": 4, "num_experts_per_tok": top_k, "moe_intermediate_size": 96}
    family = {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe"}
    return plan_model({**LLAMA, **family, **experts})


def size(plan: ModelPlan, free: int, **settings: Any) -> MemoryPlan:
    return plan_memory(plan, WEIGHTS, EngineSettings(**settings), FreeMemory(free * MIB, "for the test"))


def test_plenty_of_memory_holds_a_full_context_for_every_running_request(plan: ModelPlan) -> None:
    memory = size(plan, 8000, max_num_seqs=4)
    assert memory.num_blocks * memory.block_size == 4 * 1024
    assert memory.cache == 4 * 8 * MIB


def test_the_cache_takes_a_part_of_what_is_left(plan: ModelPlan) -> None:
    memory = size(plan, 600, max_num_seqs=64)
    left = memory.budget.size - memory.weights - memory.work
    assert 0.45 * left < memory.cache <= 0.5 * left


def test_one_context_may_take_all_that_is_left(plan: ModelPlan) -> None:
    whole = size(plan, 8000, max_num_seqs=1)
    more_work = size(plan, 8000, max_num_seqs=8).work
    needed = (whole.weights + more_work + whole.cache) // MIB + 1
    assert size(plan, needed, max_num_seqs=8).num_blocks == whole.num_blocks


def test_the_cache_is_at_most_4_gib_unless_asked_for(plan: ModelPlan) -> None:
    assert size(plan, 64_000, max_num_seqs=1000).cache == 4096 * MIB
    assert size(plan, 64_000, max_num_seqs=1000, kv_cache_bytes=6000 * MIB).cache == 6000 * MIB


def test_a_cache_that_does_not_fit_is_refused_with_one_that_does(plan: ModelPlan) -> None:
    with pytest.raises(InputError, match="the cache that was asked for does not fit") as caught:
        size(plan, 1000, kv_cache_bytes=900 * MIB)
    fits = int(re.findall(r"--kv-cache-memory (\d+)MiB would fit", str(caught.value))[0])
    assert size(plan, 1000, kv_cache_bytes=fits * MIB).cache == fits * MIB


def test_every_expert_that_a_token_goes_through_is_counted() -> None:
    one, two = (size(mixture(top_k), 8000, max_num_batched_tokens=512).work for top_k in (1, 2))
    assert two - one == 4 * 512 * (3 * 96 + 2 * 256)  # its channels three times, and its input and output


def test_scored_prompts_are_counted(plan: ModelPlan) -> None:
    more = size(plan, 8000, max_scored_tokens=1128).work - size(plan, 8000, max_scored_tokens=128).work
    assert more >= 1000 * 1000 * 4  # positions, vocabulary, bytes of a float32


def test_the_angles_of_all_positions_are_counted(plan: ModelPlan) -> None:
    assert size(plan, 8000).work - size(plan, 8000, max_model_len=24).work == 1000 * 32 * 4  # head, bytes


def test_the_users_cache_size_is_held(plan: ModelPlan) -> None:
    assert size(plan, 8000, max_num_seqs=64, kv_cache_bytes=20 * MIB).cache == 20 * MIB


@pytest.mark.parametrize(("dtype", "bits"), [("float32", 32), ("float16", 16), ("fp8", 8)])
def test_a_block_is_as_large_as_its_number_format(plan: ModelPlan, dtype: Any, bits: int) -> None:
    memory = size(plan, 8000, kv_cache_dtype=dtype)
    assert memory.block_bytes == plan.kv_elements_per_token * 16 * bits // 8


@pytest.mark.parametrize(("dtype", "bits"), [("int8", 8), ("int4", 6)])
def test_a_block_of_integers_holds_a_scale_for_each_key_and_value(
    plan: ModelPlan, dtype: Any, bits: int
) -> None:
    memory = size(plan, 8000, kv_cache_dtype=dtype)
    codes = plan.kv_elements_per_token * 16 * bits // 8
    scales = 8 * 2 * 8 * 16 * 4  # layers, key and value, heads, tokens, bytes of a float32
    assert codes + scales <= memory.block_bytes <= codes + 2 * scales


def test_too_little_memory_is_an_error_with_what_would_fit(plan: ModelPlan) -> None:
    enough = size(plan, 8000, max_num_seqs=1)
    short = (enough.weights + enough.work + enough.cache // 2) // MIB
    with pytest.raises(OutsideError, match=r"--max-model-len \d+ would fit") as caught:
        size(plan, short)
    fits = int(str(caught.value).split("--max-model-len ")[1].split()[0])
    assert size(plan, short, max_model_len=fits).max_model_len == fits


def test_too_little_memory_for_the_weights_is_said(plan: ModelPlan) -> None:
    with pytest.raises(OutsideError, match="the weights alone do not fit"):
        size(plan, 100)


@pytest.mark.parametrize(
    ("limit", "message"),
    [
        ({"memory_bytes": 300 * MIB}, "^one request of 1024 tokens does not fit"),
        (
            {"kv_cache_bytes": MIB},
            "^--kv-cache-memory does not hold one request of 1024 tokens; found 1048576 ",
        ),
    ],
)
def test_a_limit_of_the_user_that_is_too_small_is_the_users_error(
    plan: ModelPlan, limit: dict[str, int], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        size(plan, 8000, **limit)


def test_what_no_other_process_holds_is_not_blamed_on_others(plan: ModelPlan) -> None:
    with pytest.raises(OutsideError) as caught:
        size(plan, 8000, max_num_seqs=2**40)
    assert "others hold" not in caught.value.line()


def test_a_context_longer_than_the_models_is_refused(plan: ModelPlan) -> None:
    with pytest.raises(InputError, match="at most 1024"):
        size(plan, 8000, max_model_len=1025)


@pytest.mark.parametrize(
    "limit", [{"memory_bytes": 450 * MIB, "max_num_seqs": 4}, {"kv_cache_bytes": MIB}, {"max_num_seqs": 64}]
)
def test_each_option_that_the_error_names_fits(plan: ModelPlan, limit: dict[str, int]) -> None:
    """With the user's own limit, a cache too small, and a machine with too little."""
    free = (
        8000
        if {"memory_bytes", "kv_cache_bytes"} & set(limit)
        else size(plan, 8000, **limit).work // MIB + 204
    )
    with pytest.raises((InputError, OutsideError)) as caught:
        size(plan, free, **limit)
    names = {
        "--memory": "memory_bytes",
        "--kv-cache-memory": "kv_cache_bytes",
        "--max-model-len": "max_model_len",
    }
    options = re.findall(r"(--[\w-]+) (\d+)(MiB)?", str(caught.value))
    assert options
    for name, value, unit in options:
        chosen = limit | {names[name]: int(value) * (MIB if unit else 1)}
        assert size(plan, free, **chosen).num_blocks > 0


def test_the_largest_processes_are_named_without_this_one() -> None:
    found = largest_processes(1000)
    sizes = [process.resident for process in found]
    assert sizes == sorted(sizes, reverse=True)
    assert psutil.Process().pid not in {process.pid for process in found}
    assert psutil.Process().ppid() in {process.pid for process in found}


def test_the_table_adds_up(plan: ModelPlan) -> None:
    lines = size(plan, 8000, max_num_seqs=4).lines()
    values = [int(line.split(" MiB")[0].split()[-1].replace(",", "")) for line in lines]
    assert abs(values[0] - sum(values[1:])) <= 4
    assert "4.0 full contexts" in lines[3]


def test_free_memory_is_the_machines_without_a_container() -> None:
    free = free_memory(Path("/nonexistent"))
    assert 0.5 < free.size / psutil.virtual_memory().available < 2


@pytest.mark.parametrize(
    ("limit_file", "usage_file"),
    [("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes")],
)
def test_free_memory_honours_the_containers_limit(tmp_path: Path, limit_file: str, usage_file: str) -> None:
    for name, value in ((limit_file, 50 * MIB), (usage_file, 20 * MIB)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"{value}\n")
    assert free_memory(tmp_path) == FreeMemory(30 * MIB, "left of the container's limit")


@pytest.mark.parametrize(
    "stat",
    [
        f"anon 5\nfile 9\nfile_mapped {5 * MIB}\ninactive_file {10 * MIB}\nactive_file {25 * MIB}\n",
        f"active_file 7\ntotal_mapped_file {5 * MIB}\ntotal_inactive_file {35 * MIB}\ntotal_active_file 0\n",
    ],
    ids=["version 2", "version 1"],
)
def test_pages_of_files_that_nobody_has_mapped_are_free(tmp_path: Path, stat: str) -> None:
    (tmp_path / "memory.max").write_text(f"{50 * MIB}\n")
    (tmp_path / "memory.current").write_text(f"{45 * MIB}\n")
    (tmp_path / "memory.stat").write_text(stat)
    assert free_memory(tmp_path).size == 35 * MIB


def test_a_container_without_a_limit_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("5\n")
    assert free_memory(tmp_path).source == "available on this machine"


def test_free_memory_honours_the_limit_on_address_space() -> None:
    show = "from gristmill.runtime.memory import free_memory as f; print(f().size >> 20, f().source)"
    limited = f"ulimit -v $((2 << 20)); exec {sys.executable} -c '{show}'"
    done = subprocess.run(["bash", "-c", limited], capture_output=True, text=True, check=True)
    size, source = done.stdout.split(" ", 1)
    assert 0 < int(size) < 2048
    assert "ulimit -v" in source


@pytest.mark.parametrize("changes", [{"compute": "float64"}, {"block_size": 0}, {"max_num_seqs": 1.5}])
def test_settings_that_can_not_be_meant_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=next(iter(changes))):
        EngineSettings(**changes)
