"""Computed beginnings of prompts, kept so that the next prompt with the same beginning starts behind it.

The model's state exists only where it was kept, so the places matter: ends of messages first, because there prompts
branch; then growing distances; and the last token but one of each prompt, so that a repeat is nearly free.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from . import _core
from .disk_cache import DiskCache
from .errors import MemoryLimitError
from .keywords import names_nearest_keyword
from .owner import Owner
from .state_file import StateFile
from .token_ids import flat_integers
from .token_trie import Match, Node, TokenTrie

FIRST_INTERVAL: Final = 1024  # tokens; each further one is twice as long
MIN_BRANCH: Final = 64  # tokens that two prompts must share, beyond what is kept, to be worth a snapshot of their own

_log: Final = logging.getLogger("lily")
TokenIds = NDArray[np.uint32]


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixCacheStats:
    """Numbers since the engine started, except num_snapshots, snapshot_bytes and limit_bytes, which are of now.

    query_tokens: prompt tokens asked for; hit_tokens: those that were not computed again; disk_hits: prompts that
    continued from a file.
    """

    num_snapshots: int
    snapshot_bytes: int
    limit_bytes: int
    query_tokens: int
    hit_tokens: int
    disk_hits: int
    evictions: int
    last_miss_reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """What the cache knows about a prompt, and why not more.

    cached_tokens: would be reused. common_tokens: shared with some cached prompt; there the prompt goes on with
    token_id (None: it ends), the cached prompts with cached_token_ids.
    """

    prompt_tokens: int
    cached_tokens: int
    common_tokens: int
    token_id: int | None
    cached_token_ids: tuple[int, ...]
    reason: str


@dataclass(slots=True, eq=False)
class _Entry:
    """A snapshot in the trie. is_stem: it ends the first message of a prompt, which many prompts share."""

    snapshot: _core.Snapshot
    node: Node[_Entry]
    is_stem: bool
    last_used: int
    num_hits: int = 0
    pinned: bool = False


@names_nearest_keyword
class PrefixCache:
    """The snapshots of an engine, shared by all its requests and sessions. Made by Engine, as `engine.prefix_cache`.

    Bounded in bytes. The least recently used snapshot leaves first; the ends of first messages (system prompts) leave
    late, pinned ones last.

    >>> from lily import Engine
    >>> with Engine("lily-nano", max_context=1024) as engine:
    ...     prompt = engine.tokenize("The quick brown fox jumps over the lazy dog.")
    ...     first = engine.generate(prompt, max_tokens=4)
    ...     second = engine.generate(prompt, max_tokens=4)
    ...     first.usage.cached_tokens, second.usage.cached_tokens == len(prompt) - 1
    (0, True)
    """

    def __init__(
        self, owner: Owner, runtime: _core.Runtime, *, border_token_id: int | None, disk: DiskCache | None = None
    ) -> None:
        self._owner = owner
        self._runtime = runtime
        self._border_token_id = border_token_id
        self._disk = disk
        use = runtime.state_use
        self._limit = use["snapshot_limit_bytes"]
        self._max_snapshots = use["max_kept_slots"]
        self._slot_bytes, self._page_bytes = use["slot_bytes"], use["page_bytes"]
        self._trie: TokenTrie[_Entry] = TokenTrie()
        self._entries: set[_Entry] = set()
        self._clock = 0
        self._query_tokens = self._hit_tokens = self._disk_hits = self._evictions = 0
        self._last_miss_reason: str | None = None

    # For programs, from any thread.

    @property
    def enabled(self) -> bool:
        """Whether anything is kept: not with prefix_cache_bytes=0, or when the memory has room for the model only."""
        return self._max_snapshots > 0

    def stats(self) -> PrefixCacheStats:
        """Counts and bytes."""
        return self._owner.call(self._stats)

    def clear(self) -> None:
        """Drop all snapshots, pinned ones too. Files of a cache_dir stay.

        On the CPU the memory that nothing holds then, closed sessions' too, goes back to the system.
        """

        def drop_all() -> None:
            for entry in list(self._entries):
                self._drop(entry)
            self._runtime.discard_free()

        self._owner.call(drop_all)

    def pin(self, token_ids: Sequence[int]) -> int:
        """Keep the longest cached beginning of `token_ids` until unpin; returns its length, 0 if nothing is cached.

        A pinned snapshot leaves only when a request could not run otherwise.
        """

        ids = _as_ids(token_ids)

        def pin() -> int:
            values = self._trie.find(ids).values
            if not values:
                return 0
            values[-1].pinned = True
            return values[-1].node.num_tokens

        return self._owner.call(pin)

    def unpin(self, token_ids: Sequence[int]) -> int:
        """Undo pin for all cached beginnings of `token_ids`; returns the length of the longest, 0 if there was none."""

        ids = _as_ids(token_ids)

        def unpin() -> int:
            pinned = [entry for entry in self._trie.find(ids).values if entry.pinned]
            for entry in pinned:
                entry.pinned = False
            return pinned[-1].node.num_tokens if pinned else 0

        return self._owner.call(unpin)

    def explain(self, token_ids: Sequence[int]) -> Explanation:
        """How much of a prompt is cached, and where it parts from the cached prompts. Changes nothing."""
        ids = _as_ids(token_ids)
        return self._owner.call(lambda: self._explain(ids, self._trie.find(ids)))

    def __repr__(self) -> str:
        return f"PrefixCache({len(self._entries)} snapshots, limit {self._limit} bytes)"

    # For jobs, on the owner thread.

    def restore(self, timeline: _core.Timeline, prompt: TokenIds, num_tokens: int, own_tokens: int = 0) -> int:
        """Bring the timeline to the longest kept beginning of `prompt` [n], at most n - 1: the last token gives logits.
        Then take the memory of num_tokens tokens, as `reserve` does.

        own_tokens: how many tokens of the prompt the timeline holds; it stays so if nothing kept is longer. If it is 0,
        whatever it holds goes. Returns the number of tokens reused. Raises MemoryLimitError, and the timeline is as it
        was, or empty; such an attempt is not counted.
        """
        match = self._trie.find(prompt)
        best = _longest(match, len(prompt) - 1)
        cached = best.node.num_tokens if best is not None else 0
        reused = max(cached, own_tokens)
        stored = self._disk.find(prompt, longer_than=reused) if self._disk is not None else None
        if stored is None and best is not None and reused == cached:  # also for a request that has to wait
            self._touch(best)
            best.num_hits += 1
        if self._disk is not None and stored is not None:
            timeline.check_restart(num_tokens)
            if not self._load(timeline, stored, num_tokens, self._disk):
                return self.restore(timeline, prompt, num_tokens)
            reused = len(stored.token_ids)
        elif best is not None and cached > own_tokens:
            timeline.check_restart(num_tokens, best.snapshot)
            timeline.restore(best.snapshot)
        elif own_tokens == 0:
            timeline.check_restart(num_tokens)
            timeline.reset()
        explanation = self._explain(prompt, match)  # before others leave for this request
        try:
            self.reserve(timeline, num_tokens)
        except MemoryLimitError:  # after the check only if a snapshot that left is still being written to the disk
            if reused > own_tokens:
                timeline.reset()
            raise
        self._count(len(prompt), reused, explanation.reason, from_disk=stored is not None)
        return reused

    def _count(self, prompt_tokens: int, reused: int, reason: str, *, from_disk: bool) -> None:
        self._query_tokens += prompt_tokens
        self._hit_tokens += reused
        self._disk_hits += from_disk
        if reused < prompt_tokens - 1:
            if reused == 0:
                self._last_miss_reason = reason
            _log.info("prefix cache: %d of %d tokens reused: %s", reused, prompt_tokens, reason)

    def rewind(self, timeline: _core.Timeline, token_ids: TokenIds) -> int:
        """Bring the timeline to the longest kept beginning of `token_ids`, or to nothing; returns its length."""
        best = _longest(self._trie.find(token_ids), len(token_ids))
        if best is None:
            timeline.reset()
            return 0
        timeline.restore(best.snapshot)
        self._touch(best)
        return best.node.num_tokens

    def reserve(self, timeline: _core.Timeline, num_tokens: int) -> None:
        """Take the memory of num_tokens tokens, from snapshots if need be. Raises MemoryLimitError before any work."""
        while True:
            try:
                timeline.reserve(num_tokens)
                return
            except MemoryLimitError as error:
                # Snapshots are not given up for something that does not fit without them either.
                reclaimable = self._runtime.state_use["reclaimable_pages"] * self._page_bytes
                victim = self._victim(for_request=True)
                if victim is None or error.required_bytes > error.available_bytes + reclaimable:
                    raise
                self._evict(victim)

    def places(self, prompt: TokenIds, start: int) -> list[int]:
        """Numbers of tokens of `prompt` [n] after which to keep the state, ascending, all above `start` and below n."""
        last = len(prompt) - 1
        borders = self._borders(prompt)
        chosen = {last, *borders[:1], *borders[-2:]}
        interval = FIRST_INTERVAL
        while interval < last:
            near = borders[(borders > interval // 2) & (borders <= interval)]
            chosen.add(int(near[-1]) if len(near) else interval)
            interval *= 2
        branch = self._trie.find(prompt).num_tokens
        if branch >= start + MIN_BRANCH:
            chosen.add(branch)
        return sorted(int(place) for place in chosen if start < place <= last)

    def keep(self, token_ids: TokenIds, timeline: _core.Timeline, *, of_prompt: TokenIds | None = None) -> None:
        """Keep the timeline's state, which is that after `token_ids`, unless more useful ones fill the cache.

        of_prompt: the whole prompt, if its prefill is under way; then the state may also go to the disk.
        """
        if timeline.num_tokens == 0:
            return
        known = self._trie.find(token_ids).values
        if known and known[-1].node.num_tokens == len(token_ids):
            self._touch(known[-1])
            return
        snapshot = self._snapshot(timeline)
        if snapshot is None:
            return
        borders = self._borders(token_ids if of_prompt is None else of_prompt)
        is_stem = len(borders) > 0 and len(token_ids) == borders[0]
        node = self._trie.node(token_ids)
        entry = _Entry(snapshot, node, is_stem, self._clock)
        node.value = entry
        self._entries.add(entry)
        self._touch(entry)
        if self._disk is not None and of_prompt is not None and (is_stem or len(token_ids) == len(of_prompt) - 1):
            num_bytes = self._slot_bytes + len(token_ids) * self._page_bytes // _core.PAGE_TOKENS
            self._disk.store(token_ids, num_bytes, snapshot.read_state)

    def _snapshot(self, timeline: _core.Timeline) -> _core.Snapshot | None:
        # Nothing has to leave for what has no room beside nothing either. The runtime cannot tell: it counts only what
        # others do not keep already, and they would have left by then.
        num_bytes = self._num_bytes(timeline.num_tokens)
        if num_bytes > self._limit:
            _log.info(
                "prefix cache: a snapshot of %d tokens takes %d bytes and was not kept: the limit is %d bytes; "
                "raise prefix_cache_bytes",
                timeline.num_tokens,
                num_bytes,
                self._limit,
            )
            return None
        while True:
            try:
                return timeline.snapshot()
            except MemoryLimitError as error:
                victim = self._victim(for_request=False)
                if victim is None:
                    _log.info("prefix cache: a snapshot was not kept: %s", error)
                    return None
                self._evict(victim)

    def _num_bytes(self, num_tokens: int) -> int:
        """Bytes of a snapshot that shares nothing with others."""
        return self._slot_bytes + -(-num_tokens // _core.PAGE_TOKENS) * self._page_bytes

    def _load(self, timeline: _core.Timeline, stored: StateFile, num_tokens: int, disk: DiskCache) -> bool:
        """Take the memory of num_tokens tokens and continue from a file. False, and an empty timeline, if it holds no
        state of this model after all."""
        timeline.reset()
        self.reserve(timeline, num_tokens)
        try:
            timeline.load_state(len(stored.token_ids), stored.recurrent_state, stored.conv_state, stored.kv)
        except ValueError as error:
            timeline.reset()
            disk.refuse(stored, str(error))
            return False
        self.keep(stored.token_ids, timeline)
        return True

    def _borders(self, token_ids: TokenIds) -> NDArray[np.intp]:
        """Numbers of tokens after which a message ends: those before each token that starts one, but the first."""
        if self._border_token_id is None:
            return np.empty(0, np.intp)
        return np.flatnonzero(token_ids[1:] == self._border_token_id) + 1

    def _touch(self, entry: _Entry) -> None:
        self._clock += 1
        entry.last_used = self._clock

    def _victim(self, *, for_request: bool) -> _Entry | None:
        """The snapshot to lose first. Protected ones go for a request's sake only, pinned ones last."""
        protected = self._protected()
        candidates = [entry for entry in self._entries if for_request or not (entry.pinned or entry in protected)]
        return min(candidates, key=lambda entry: (entry.pinned, entry in protected, entry.last_used), default=None)

    def _protected(self) -> set[_Entry]:
        """The most useful stems, as many as leave half of the cache to everything else."""
        stems = [entry for entry in self._entries if entry.is_stem and not entry.pinned]
        stems.sort(key=lambda entry: (entry.num_hits > 0, entry.last_used), reverse=True)
        protected: set[_Entry] = set()
        num_bytes = 0
        for entry in stems[: self._max_snapshots // 2]:
            num_bytes += self._num_bytes(entry.node.num_tokens)
            if protected and num_bytes > self._limit // 2:
                break
            protected.add(entry)
        return protected

    def _evict(self, entry: _Entry) -> None:
        self._evictions += 1
        self._drop(entry)

    def _drop(self, entry: _Entry) -> None:
        self._entries.remove(entry)
        self._trie.remove(entry.node)
        del entry.snapshot

    def _stats(self) -> PrefixCacheStats:
        return PrefixCacheStats(
            num_snapshots=len(self._entries),
            snapshot_bytes=self._runtime.state_use["snapshot_bytes"],
            limit_bytes=self._limit,
            query_tokens=self._query_tokens,
            hit_tokens=self._hit_tokens,
            disk_hits=self._disk_hits,
            evictions=self._evictions,
            last_miss_reason=self._last_miss_reason,
        )

    def _explain(self, prompt: TokenIds, match: Match[_Entry]) -> Explanation:
        best = _longest(match, len(prompt) - 1)
        cached, common = best.node.num_tokens if best is not None else 0, match.num_tokens
        kept = f"the last snapshot before it is after token {cached}" if cached else "no snapshot lies before it"
        if not self._entries:
            reason = "the cache is empty"
        elif common >= len(prompt) - 1:
            reason = "a cached prompt starts with all of it" + ("" if cached == len(prompt) - 1 else f"; {kept}")
        elif not match.other_token_ids:
            reason = f"it goes on where the nearest cached prompt ends, after {common} tokens" + (
                "" if cached == common else f"; {kept}"
            )
        else:
            reason = f"token {common} differs from the nearest cached prompt; {kept}"
        return Explanation(
            prompt_tokens=len(prompt),
            cached_tokens=cached,
            common_tokens=common,
            token_id=int(prompt[common]) if common < len(prompt) else None,
            cached_token_ids=match.other_token_ids,
            reason=reason,
        )


def _longest(match: Match[_Entry], at_most: int) -> _Entry | None:
    return next((entry for entry in reversed(match.values) if entry.node.num_tokens <= at_most), None)


def _as_ids(token_ids: Sequence[int]) -> TokenIds:
    ids = flat_integers(token_ids)
    if ids.size and (ids.min() < 0 or ids.max() > np.iinfo(np.uint32).max):
        raise ValueError(f"token ids are from 0 up, not from {ids.min()} to {ids.max()}")
    return ids.astype(np.uint32)
