"""What an engine holds now: read on its own thread, for the metrics and the status page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..engine import Engine


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineUse:
    """memory_bytes: set aside, by kind. query_tokens, hit_tokens: of the prefix cache, since the engine started."""

    memory_bytes: Mapping[str, int]
    kv_usage_ratio: float
    num_snapshots: int
    snapshot_bytes: int
    snapshot_limit_bytes: int
    query_tokens: int
    hit_tokens: int


def engine_use(engine: Engine) -> EngineUse:
    """Call on the engine's thread."""
    runtime = engine.runtime
    state, stats = runtime.state_use, engine.prefix_cache._stats()
    memory = runtime.memory_bytes
    num_pages = memory["kv"] // state["page_bytes"]
    return EngineUse(
        memory_bytes=memory,
        kv_usage_ratio=1 - state["free_pages"] / num_pages if num_pages else 0.0,
        num_snapshots=stats.num_snapshots,
        snapshot_bytes=stats.snapshot_bytes,
        snapshot_limit_bytes=stats.limit_bytes,
        query_tokens=stats.query_tokens,
        hit_tokens=stats.hit_tokens,
    )
