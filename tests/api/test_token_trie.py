from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lily.token_trie import TokenTrie

SEQUENCES = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=8).map(tuple), min_size=1, max_size=12)


def ids(sequence: tuple[int, ...]) -> np.ndarray:
    return np.array(sequence, np.uint32)


def common(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


@given(SEQUENCES, SEQUENCES, st.randoms(use_true_random=False))
def test_like_a_dictionary_of_sequences(added, asked, random) -> None:
    trie: TokenTrie[tuple[int, ...]] = TokenTrie()
    model = {}
    for sequence in added:
        node = trie.node(ids(sequence))
        node.value, model[sequence] = sequence, node
        assert node.num_tokens == len(sequence)
        if random.random() < 0.4:
            trie.remove(model.pop(random.choice(list(model))))
        for query in [*asked, *added]:
            match = trie.find(ids(query))
            assert match.num_tokens == max((common(query, known) for known in model), default=0)
            assert list(match.values) == sorted((known for known in model if query[: len(known)] == known), key=len)
            depth = match.num_tokens
            followers = {k[depth] for k in model if len(k) > depth and k[:depth] == query[:depth]}
            assert set(match.other_token_ids) == followers
        assert {node.value for node in trie.nodes() if node.value} == set(model)
        assert all(node.value or len(node.children) > 1 for node in trie.nodes())
    for node in list(model.values()):
        trie.remove(node)
    assert list(trie.nodes()) == []
