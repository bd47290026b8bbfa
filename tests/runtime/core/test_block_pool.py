"""Blocks are conserved, and losing one is noticed."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.runtime.core.block_pool import BlockPool
from gristmill.runtime.core.prefix_cache import CachedBlock, PrefixCache
from gristmill.runtime.errors import InternalError


def make_pool(num_blocks: int, cache: PrefixCache | None = None) -> BlockPool:
    return BlockPool(num_blocks, PrefixCache(block_size=1) if cache is None else cache)


def index_chain(cache: PrefixCache, blocks: list[int], root: str = "") -> None:
    """Index blocks of one token each, one after the other; a block's token is its id."""
    chain: list[CachedBlock] = []
    for block in blocks:
        cache.insert(chain, root, (block,), block)


def test_a_shared_block_is_free_only_after_both_tables_let_go() -> None:
    pool = make_pool(2)
    blocks = pool.allocate(1)
    pool.share(blocks)
    pool.release(blocks)
    assert pool.num_free == 1
    pool.release(blocks)
    assert pool.num_free == 2


def test_more_blocks_than_are_free_is_refused_with_both_numbers() -> None:
    pool = make_pool(3)
    pool.allocate(2)
    with pytest.raises(InternalError, match="found 1 free; expected 2"):
        pool.allocate(2)


def test_reserved_blocks_are_kept_for_whom_they_were_reserved() -> None:
    pool = make_pool(3)
    pool.reserve(2)
    assert (pool.num_free, pool.num_held) == (1, 0)
    with pytest.raises(InternalError, match="found 1 free; expected 2"):
        pool.allocate(2)
    table = pool.allocate(3, reserved=2)
    assert (pool.num_free, pool.num_held) == (0, 3)
    pool.check_integrity([table])


def test_a_reservation_that_was_given_back_is_free_for_all() -> None:
    pool = make_pool(2)
    pool.reserve(2)
    pool.cancel(2)
    assert len(pool.allocate(2)) == 2
    with pytest.raises(InternalError, match="were not reserved"):
        pool.cancel(1)


def test_integrity_notices_a_reservation_that_nobody_made() -> None:
    pool = make_pool(2)
    pool.reserve(1)
    pool.check_integrity([], num_reserved=1)
    with pytest.raises(InternalError, match="reserved blocks are not conserved"):
        pool.check_integrity([])


def test_a_reserved_block_still_has_its_cached_prefix() -> None:
    cache = PrefixCache(block_size=1)
    pool = make_pool(2, cache)
    table = pool.allocate(2)
    index_chain(cache, table)
    pool.release(table)
    pool.reserve(2)
    assert (pool.num_free, pool.num_cached) == (0, 2)


def test_releasing_a_free_block_is_refused() -> None:
    pool = make_pool(2)
    blocks = pool.allocate(1)
    pool.release(blocks)
    with pytest.raises(InternalError, match="released twice"):
        pool.release(blocks)


def test_sharing_a_free_block_is_refused() -> None:
    with pytest.raises(InternalError, match="can't be shared"):
        make_pool(2).share([1])


def test_integrity_notices_a_block_that_no_table_holds() -> None:
    pool = make_pool(4)
    table = pool.allocate(2)
    pool.check_integrity([table])
    with pytest.raises(InternalError, match="lost count"):
        pool.check_integrity([table[:1]])


def test_integrity_notices_a_block_that_two_tables_hold_unshared() -> None:
    pool = make_pool(4)
    table = pool.allocate(2)
    with pytest.raises(InternalError, match="lost count"):
        pool.check_integrity([table, table])


def test_integrity_notices_a_block_missing_from_the_free_list() -> None:
    pool = make_pool(4)
    pool._free.pop()
    with pytest.raises(InternalError, match="not conserved"):
        pool.check_integrity([])


@settings(max_examples=50)
@given(st.lists(st.tuples(st.sampled_from(["allocate", "share", "release"]), st.integers(0, 7)), max_size=60))
def test_any_order_of_operations_conserves_blocks(operations: list[tuple[str, int]]) -> None:
    pool = make_pool(12)
    tables: list[list[int]] = []
    for name, value in operations:
        if name == "allocate" and value <= pool.num_free:
            tables.append(pool.allocate(value))
        elif name == "share" and tables:
            tables.append(list(tables[value % len(tables)]))
            pool.share(tables[-1])
        elif name == "release" and tables:
            pool.release(tables.pop(value % len(tables)))
        pool.check_integrity(tables)
    for table in tables:
        pool.release(table)
    assert pool.num_free == pool.num_blocks


def test_an_indexed_block_stays_cached_without_references_and_can_be_shared_again() -> None:
    cache = PrefixCache(block_size=1)
    pool = make_pool(3, cache)
    table = pool.allocate(2)
    index_chain(cache, table)
    pool.release(table)
    assert (pool.num_free, pool.num_cached) == (3, 2)
    pool.share(table)
    assert (pool.num_free, pool.num_cached) == (1, 0)
    pool.check_integrity([table])


def test_never_used_blocks_are_given_before_a_cached_one_is_evicted() -> None:
    cache = PrefixCache(block_size=1)
    pool = make_pool(3, cache)
    table = pool.allocate(1)
    index_chain(cache, table)
    pool.release(table)
    assert set(pool.allocate(2)).isdisjoint(table)
    assert len(cache) == 1
    assert pool.allocate(1) == table
    assert len(cache) == 0


def test_the_block_unused_longest_is_evicted_first_and_a_continuation_before_its_beginning() -> None:
    cache = PrefixCache(block_size=1)
    pool = make_pool(5, cache)
    first, second = pool.allocate(3), pool.allocate(2)
    index_chain(cache, first)
    index_chain(cache, second, root="other")
    pool.release(first)
    pool.release(second)
    pool.share(first[:1])  # used again, by a prompt that goes on otherwise
    pool.release(first[:1])
    assert pool.allocate(5) == [first[2], first[1], second[1], second[0], first[0]]


def test_forgetting_frees_what_was_cached() -> None:
    cache = PrefixCache(block_size=1)
    pool = make_pool(3, cache)
    table = pool.allocate(3)
    index_chain(cache, table)
    pool.release(table[1:])
    pool.forget_cached()
    assert (pool.num_free, pool.num_cached, len(cache)) == (2, 0, 0)
    pool.check_integrity([table[:1]])


def test_integrity_notices_a_cached_block_that_outlives_its_beginning() -> None:
    cache = PrefixCache(block_size=1)
    pool = make_pool(2, cache)
    table = pool.allocate(2)
    index_chain(cache, table)
    pool.release(table[:1])
    pool.release(table[1:])
    with pytest.raises(InternalError, match="outlives"):
        pool.check_integrity([])
