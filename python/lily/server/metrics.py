"""Metrics in Prometheus' text format, with names under `lily_` and base units."""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from .admission import Admission
from .host import EngineHost
from .use import EngineUse, engine_use

REFRESH_SECONDS: Final = 1.0  # a device in a long step is not waited for: the last values are given then

_TOKEN_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
_FIRST_TOKEN_SECONDS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
_REQUEST_SECONDS: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0)


class Metrics:
    """The counters of one server. Every request ends in exactly one of success, cancelled and error."""

    def __init__(self, host: EngineHost, admission: Admission) -> None:
        self._host = host
        registry = self._registry = CollectorRegistry()
        self.success = Counter(
            "lily_request_success", "Requests answered in full", ["route", "finish_reason"], registry=registry
        )
        self.cancelled = Counter(
            "lily_cancelled", "Requests whose client left before the end", ["route"], registry=registry
        )
        self.error = Counter(
            "lily_request_error", "Requests that were refused or failed", ["route", "status"], registry=registry
        )
        self.prompt_tokens = Counter("lily_prompt_tokens", "Tokens of prompts, cached ones included", registry=registry)
        self.generation_tokens = Counter("lily_generation_tokens", "Tokens generated", registry=registry)
        self.time_to_first_token = Histogram(
            "lily_time_to_first_token_seconds",
            "From the arrival of a request to its first token",
            buckets=_FIRST_TOKEN_SECONDS,
            registry=registry,
        )
        self.inter_token_latency = Histogram(
            "lily_inter_token_latency_seconds",
            "Mean time between the tokens of a request",
            buckets=_TOKEN_SECONDS,
            registry=registry,
        )
        self.request_latency = Histogram(
            "lily_e2e_request_latency_seconds",
            "From the arrival of a request to its end",
            buckets=_REQUEST_SECONDS,
            registry=registry,
        )
        running = Gauge("lily_num_requests_running", "Requests that the device works on", registry=registry)
        running.set_function(lambda: admission.num_running)
        waiting = Gauge("lily_num_requests_waiting", "Requests that wait for the device", registry=registry)
        waiting.set_function(lambda: admission.num_waiting)
        self._kv_usage = Gauge("lily_kv_cache_usage_ratio", "KV pages in use, kept ones included", registry=registry)
        self._queries = Counter("lily_prefix_cache_queries", "Prompt tokens looked for", registry=registry)
        self._hits = Counter("lily_prefix_cache_hits", "Prompt tokens not computed again", registry=registry)
        self._snapshots = Gauge("lily_snapshot_bytes", "Bytes of kept beginnings of prompts", registry=registry)
        self._memory = Gauge("lily_memory_bytes", "Memory set aside, by kind", ["kind"], registry=registry)
        self._query_tokens, self._hit_tokens = 0, 0

    async def render(self) -> bytes:
        """The text of all metrics, those of the engine read anew."""
        use = await self._host.between_steps(engine_use, REFRESH_SECONDS)
        if use is not None:
            self._set(use)
        return generate_latest(self._registry)

    def _set(self, use: EngineUse) -> None:
        self._kv_usage.set(use.kv_usage_ratio)
        self._snapshots.set(use.snapshot_bytes)
        for kind, num_bytes in use.memory_bytes.items():
            self._memory.labels(kind).set(num_bytes)
        self._queries.inc(use.query_tokens - self._query_tokens)
        self._hits.inc(use.hit_tokens - self._hit_tokens)
        self._query_tokens, self._hit_tokens = use.query_tokens, use.hit_tokens
