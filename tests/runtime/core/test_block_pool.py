"""Blocks are conserved, and losing one is noticed."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.runtime.core.block_pool import BlockPool
from gristmill.runtime.errors import InternalError


def test_a_shared_block_is_free_only_after_both_tables_let_go() -> None:
    pool = BlockPool(2)
    blocks = pool.allocate(1)
    pool.share(blocks)
    pool.release(blocks)
    assert pool.num_free == 1
    pool.release(blocks)
    assert pool.num_free == 2


def test_more_blocks_than_are_free_is_refused_with_both_numbers() -> None:
    pool = BlockPool(3)
    pool.allocate(2)
    with pytest.raises(InternalError, match="found 1 free; expected 2"):
        pool.allocate(2)


def test_releasing_a_free_block_is_refused() -> None:
    pool = BlockPool(2)
    blocks = pool.allocate(1)
    pool.release(blocks)
    with pytest.raises(InternalError, match="released twice"):
        pool.release(blocks)


def test_sharing_a_free_block_is_refused() -> None:
    with pytest.raises(InternalError, match="can't be shared"):
        BlockPool(2).share([1])


def test_integrity_notices_a_block_that_no_table_holds() -> None:
    pool = BlockPool(4)
    table = pool.allocate(2)
    pool.check_integrity([table])
    with pytest.raises(InternalError, match="lost count"):
        pool.check_integrity([table[:1]])


def test_integrity_notices_a_block_that_two_tables_hold_unshared() -> None:
    pool = BlockPool(4)
    table = pool.allocate(2)
    with pytest.raises(InternalError, match="lost count"):
        pool.check_integrity([table, table])


def test_integrity_notices_a_block_missing_from_the_free_list() -> None:
    pool = BlockPool(4)
    pool._free.pop()
    with pytest.raises(InternalError, match="not conserved"):
        pool.check_integrity([])


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.sampled_from(["allocate", "share", "release"]), st.integers(0, 7)), max_size=60))
def test_any_order_of_operations_conserves_blocks(operations: list[tuple[str, int]]) -> None:
    pool = BlockPool(12)
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
