"""A prefix is found by its exact tokens, under its own root, as long as it is there."""

from __future__ import annotations

import pytest

from gristmill.runtime.core.prefix_cache import CachedBlock, PrefixCache
from gristmill.runtime.errors import InternalError


def fill(cache: PrefixCache, tokens: str, first_block: int, root: str = "") -> list[CachedBlock]:
    """Index a text in blocks of two letters, from `first_block` on; returns its chain."""
    chain: list[CachedBlock] = []
    for index in range(len(tokens) // 2):
        cache.insert(chain, root, cache.block_tokens(ids(tokens), index), first_block + index)
    return chain


def ids(tokens: str) -> list[int]:
    return [ord(letter) for letter in tokens]


def find(cache: PrefixCache, tokens: str, root: str = "", most: int = 99) -> list[int]:
    chain: list[CachedBlock] = []
    cache.extend(chain, root, ids(tokens), most)
    return [cached.block for cached in chain]


def test_the_longest_cached_beginning_is_found() -> None:
    cache = PrefixCache(2)
    fill(cache, "abcdef", 0)
    assert find(cache, "abcdxx") == [0, 1]
    assert find(cache, "abcdefgh") == [0, 1, 2]
    assert find(cache, "abcdef", most=1) == [0]
    assert find(cache, "xbcdef") == []


def test_equal_blocks_after_different_beginnings_are_different() -> None:
    cache = PrefixCache(2)
    fill(cache, "abzz", 0)
    fill(cache, "cdzz", 2)
    assert find(cache, "cdzz") == [2, 3]
    assert find(cache, "efzz") == []


def test_roots_do_not_share() -> None:
    cache = PrefixCache(2)
    fill(cache, "abcd", 0, root="ours")
    assert find(cache, "abcd", root="theirs") == []
    assert find(cache, "abcd", root="ours") == [0, 1]


def test_what_is_known_already_keeps_its_block() -> None:
    cache = PrefixCache(2)
    fill(cache, "abcd", 0)
    chain = fill(cache, "abce", 5)
    assert [cached.block for cached in chain] == [0, 6]
    assert 5 not in cache


def test_a_remembered_chain_loses_what_was_evicted_and_gains_what_came() -> None:
    cache = PrefixCache(2)
    fill(cache, "abcd", 0)
    chain: list[CachedBlock] = []
    cache.extend(chain, "", ids("abcdef"), 3)
    cache.evict(1)
    cache.extend(chain, "", ids("abcdef"), 3)
    assert [cached.block for cached in chain] == [0]
    fill(cache, "abcdef", 7)
    cache.extend(chain, "", ids("abcdef"), 3)
    assert [cached.block for cached in chain] == [0, 8, 9]


def test_the_continuation_that_shares_most_is_the_nearest() -> None:
    cache = PrefixCache(2)
    chain = fill(cache, "abcd", 0)[:1]
    fill(cache, "abxy", 5)
    for rest, block, shared in (("cx", 1, 1), ("xy", 6, 2), ("x", 6, 1), ("q", None, 0), ("", None, 0)):
        found, length = cache.nearest(chain, "", ids(rest))
        assert (found.block if found else None, length) == (block, shared)


def test_a_block_that_others_continue_can_not_be_evicted() -> None:
    cache = PrefixCache(2)
    fill(cache, "abcd", 0)
    with pytest.raises(InternalError, match="before its continuations"):
        cache.evict(0)


def test_nothing_is_left_of_a_root_whose_blocks_are_gone() -> None:
    cache = PrefixCache(2)
    fill(cache, "abcd", 0, root="one of many salts")
    cache.evict(1)
    cache.evict(0)
    assert len(cache) == 0
    assert not cache._roots
    cache.check_integrity()


def test_a_cleared_cache_finds_nothing_and_tells_those_who_remember() -> None:
    cache = PrefixCache(2)
    chain = fill(cache, "abcd", 0)
    cache.clear()
    assert find(cache, "abcd") == []
    cache.extend(chain, "", ids("abcd"), 2)
    assert chain == []
