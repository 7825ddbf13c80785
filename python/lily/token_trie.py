"""A radix trie over token sequences: where prompts share a beginning, and what is kept for which beginning."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

Value = TypeVar("Value")
TokenIds = NDArray[np.uint32]


@dataclass(slots=True, eq=False)
class Node(Generic[Value]):
    """A beginning of some sequence. tokens: those since the parent; num_tokens: all of them; value: what is kept."""

    tokens: TokenIds
    num_tokens: int
    parent: Node[Value] | None
    children: dict[int, Node[Value]] = field(default_factory=dict)
    value: Value | None = None


@dataclass(frozen=True, slots=True)
class Match(Generic[Value]):
    """How far a sequence is known.

    num_tokens: length of the longest known beginning. values: those kept on the way, the shortest beginning first.
    other_token_ids: how the known sequences go on there; empty where one ends.
    """

    num_tokens: int
    values: tuple[Value, ...]
    other_token_ids: tuple[int, ...]


class TokenTrie(Generic[Value]):
    """Values by token sequence. Costs memory for what is kept only: sequences without a value are forgotten."""

    def __init__(self) -> None:
        self._root: Node[Value] = Node(np.empty(0, np.uint32), 0, None)

    def find(self, token_ids: TokenIds) -> Match[Value]:
        """Follow `token_ids` [n] as far as they are known."""
        node = self._root
        values: list[Value] = []
        while True:
            depth = node.num_tokens
            child = node.children.get(int(token_ids[depth])) if depth < len(token_ids) else None
            if child is None:
                return Match(depth, tuple(values), tuple(node.children))
            common = common_length(child.tokens, token_ids[depth:])
            if common < len(child.tokens):
                return Match(depth + common, tuple(values), (int(child.tokens[common]),))
            node = child
            if node.value is not None:
                values.append(node.value)

    def node(self, token_ids: TokenIds) -> Node[Value]:
        """The node of `token_ids` [n >= 1], made if need be. Give it a value, or remove it again."""
        node = self._root
        while node.num_tokens < len(token_ids):
            rest = token_ids[node.num_tokens :]
            child = node.children.get(int(rest[0]))
            if child is None:
                # A copy: a view would keep the caller's whole prompt.
                child = Node(rest.copy(), len(token_ids), node)
                node.children[int(rest[0])] = child
            elif (common := common_length(child.tokens, rest)) < len(child.tokens):
                child = _split(child, common)
            node = child
        return node

    def remove(self, node: Node[Value]) -> None:
        """Forget the node's value, and the tokens that only led there."""
        node.value = None
        while (parent := node.parent) is not None and node.value is None:
            first = int(node.tokens[0])
            if not node.children:
                del parent.children[first]
                node.parent = None
                node = parent
                continue
            if len(node.children) == 1:
                (child,) = node.children.values()
                child.tokens = np.concatenate([node.tokens, child.tokens])
                child.parent = parent
                parent.children[first] = child
                node.parent = None
            return

    def nodes(self) -> Iterator[Node[Value]]:
        """All nodes but the root."""
        stack = [self._root]
        while stack:
            node = stack.pop()
            stack.extend(node.children.values())
            if node.parent is not None:
                yield node


def common_length(a: TokenIds, b: TokenIds) -> int:
    """Length of the common beginning of two token sequences."""
    n = min(len(a), len(b))
    different = np.flatnonzero(a[:n] != b[:n])
    return int(different[0]) if len(different) else n


def _split(node: Node[Value], length: int) -> Node[Value]:
    """A new node in front of `node`, which takes the first `length` of its tokens."""
    parent = node.parent
    assert parent is not None
    front: Node[Value] = Node(node.tokens[:length].copy(), parent.num_tokens + length, parent)
    parent.children[int(node.tokens[0])] = front
    node.tokens = node.tokens[length:].copy()
    node.parent = front
    front.children[int(node.tokens[0])] = node
    return front
