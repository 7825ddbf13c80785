"""Metrics: valid text, every request in exactly one counter, and the numbers of the engine."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from .live import ASK, Live, serving

CHAT = "/v1/chat/completions"
NAMES = {
    "lily_request_success", "lily_cancelled", "lily_request_error", "lily_prompt_tokens", "lily_generation_tokens",
    "lily_time_to_first_token_seconds", "lily_inter_token_latency_seconds", "lily_e2e_request_latency_seconds",
    "lily_num_requests_running", "lily_num_requests_waiting", "lily_kv_cache_usage_ratio", "lily_prefix_cache_queries",
    "lily_prefix_cache_hits", "lily_snapshot_bytes", "lily_memory_bytes",
}  # fmt: skip


def test_every_request_is_counted_once_and_its_tokens_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lily.server.metrics.REFRESH_SECONDS", 300)  # no old values, however busy the machine
    with serving() as live:
        usages = [live.post(CHAT, messages=ASK, max_tokens=5).json()["usage"] for _ in range(3)]
        live.post(CHAT, messages=[])
        live.client.post(CHAT, content=b"{")
        live.post("/v1/messages", messages=ASK, max_tokens=2)
        assert live.metric("lily_request_success_total", route=CHAT, finish_reason="length") == 3
        assert live.metric("lily_request_success_total") == 4
        assert live.metric("lily_request_error_total", route=CHAT, status="400") == 2
        assert live.metric("lily_generation_tokens_total") == 17
        prompts = sum(usage["prompt_tokens"] for usage in usages)
        cached = sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in usages)
        assert live.metric("lily_prompt_tokens_total") > prompts
        assert live.metric("lily_prefix_cache_hits_total") >= cached > 0
        assert live.metric("lily_prefix_cache_queries_total") == live.metric("lily_prompt_tokens_total")
        assert live.metric("lily_time_to_first_token_seconds_count") == 4
        assert live.metric("lily_e2e_request_latency_seconds_count") == 6
        assert live.metric("lily_memory_bytes") == sum(live.engine.runtime.memory_bytes.values())
        assert 0 < live.metric("lily_kv_cache_usage_ratio") < 1
        assert live.metric("lily_snapshot_bytes") == live.engine.prefix_cache.stats().snapshot_bytes > 0


def test_the_text_is_what_prometheus_reads(live: Live) -> None:
    response = live.client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    families = {family.name: family for family in text_string_to_metric_families(response.text)}
    assert {name for name in families if not name.endswith("_created")} >= NAMES
    assert all(family.documentation for family in families.values() if family.name in NAMES)


def test_metrics_and_status_answer_while_the_device_is_busy(live: Live) -> None:
    with live.device_held():
        assert live.client.get("/metrics").status_code == 200
        assert live.client.get("/status").json()["use"] is None
