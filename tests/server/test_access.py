"""Who may call: keys, web pages, and the routes that tell nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator

import httpx
import pytest

from .live import ASK, Live, serving


@pytest.fixture(scope="module")
def guarded() -> Iterator[Live]:
    with serving(api_key="open sesame"[:4] + "-key", allowed_origins=("https://app.example.org",)) as live:
        yield live


def test_a_key_is_asked_for_on_all_routes_that_tell_something(guarded: Live) -> None:
    for method, path in (
        ("GET", "/v1/models"),
        ("GET", "/metrics"),
        ("GET", "/status"),
        ("GET", "/nowhere"),
        ("POST", "/v1/chat/completions"),
        ("POST", "/v1/messages"),
        ("POST", "/tokenize"),
    ):
        for headers in ({}, {"authorization": "Bearer wrong"}, {"x-api-key": "open-ke"}, {"authorization": "open-key"}):
            refused = guarded.client.request(method, path, headers=headers, json={})
            assert refused.status_code == 401 and refused.headers["www-authenticate"] == "Bearer"
            assert refused.json()["error"]["type"] == "authentication_error"
            assert "open-key" not in refused.text
    for path in ("/health", "/ready", "/", "/openapi.json"):
        assert guarded.client.get(path).status_code == 200


def test_a_key_is_taken_in_both_headers(guarded: Live) -> None:
    for headers in (
        {"authorization": "Bearer open-key"},
        {"Authorization": "bearer open-key"},
        {"x-api-key": "open-key"},
    ):
        assert guarded.client.get("/v1/models", headers=headers).status_code == 200
    odd = httpx.Headers([(b"x-api-key", b"\xff\xfe")])
    assert guarded.client.get("/v1/models", headers=odd).status_code == 401


def test_only_allowed_pages_may_call(guarded: Live) -> None:
    headers = {"x-api-key": "open-key", "origin": "https://app.example.org"}
    allowed = guarded.client.get("/v1/models", headers=headers)
    assert allowed.headers["access-control-allow-origin"] == "https://app.example.org"
    asked = {"access-control-request-method": "POST", "access-control-request-headers": "authorization,content-type"}
    preflight = guarded.client.options("/v1/chat/completions", headers={"origin": "https://app.example.org"} | asked)
    assert preflight.status_code == 200 and "POST" in preflight.headers["access-control-allow-methods"]
    foreign = guarded.client.get("/v1/models", headers=headers | {"origin": "https://evil.example.org"})
    assert foreign.status_code == 403 and "access-control-allow-origin" not in foreign.headers


def test_pages_of_other_origins_may_not_call_unless_told(live: Live) -> None:
    body = {"messages": ASK, "max_tokens": 1}
    for origin in ("https://evil.example.org", "null", "http://127.0.0.1:1", f"http://localhost.evil.org:{live.port}"):
        refused = live.client.post("/v1/chat/completions", json=body, headers={"origin": origin})
        assert refused.status_code == 403 and "--allowed-origins" in refused.json()["error"]["message"]
    # The page of the server itself, and not one whose name was pointed at this machine.
    assert live.client.get("/status", headers={"origin": live.url}).status_code == 200
    name = f"rebound.example.org:{live.port}"
    rebound = live.client.get("/status", headers={"origin": f"http://{name}", "host": name})
    assert rebound.status_code == 403


def test_unknown_routes_and_methods(live: Live) -> None:
    missing = live.client.get("/v1/nothing")
    assert missing.status_code == 404 and missing.json()["error"]["code"] == "not_found"
    wrong = live.client.get("/v1/messages")
    assert wrong.status_code == 405 and wrong.headers["allow"] == "POST"
    assert wrong.json()["type"] == "error" and wrong.json()["request_id"] == wrong.headers["request-id"]


def test_routes_also_answer_without_the_prefix(live: Live) -> None:
    for path in ("/models", "/models/lily-nano", "/health"):
        assert live.client.get(path).json() == live.client.get(f"/v1{path}").json()
    for path, body in (
        ("/chat/completions", {"messages": ASK, "max_tokens": 1}),
        ("/completions", {"prompt": "x", "max_tokens": 1}),
        ("/responses", {"input": "x", "max_output_tokens": 1}),
        ("/messages", {"messages": ASK, "max_tokens": 1}),
        ("/messages/count_tokens", {"messages": ASK}),
        ("/tokenize", {"content": "x"}),
        ("/apply-template", {"messages": ASK}),
    ):
        assert live.post(path, **body).status_code == live.post(f"/v1{path}", **body).status_code == 200


def test_prompts_without_running_the_model(live: Live) -> None:
    applied = live.post("/apply-template", messages=ASK, reasoning_effort="none").json()
    prompt = live.engine.render(ASK, reasoning=False)  # type: ignore[arg-type]
    assert applied == {"prompt": prompt, "tokens": live.engine.tokenize(prompt), "count": applied["count"]}
    assert live.post("/tokenize", messages=ASK, reasoning_effort="none").json()["tokens"] == applied["tokens"]
    text = live.post("/tokenize", content="The first").json()
    assert text["tokens"] == live.engine.tokenize("The first") and text["max_context"] == 2048
    chat = live.post("/v1/chat/completions", messages=ASK, reasoning_effort="none", temperature=0, max_tokens=8).json()
    again = live.post("/v1/completions", prompt=applied["tokens"], temperature=0, max_tokens=8).json()
    assert again["choices"][0]["text"] == chat["choices"][0]["message"]["content"]


def test_unknown_fields_are_ignored_and_named_at_debug_level(live: Live, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("DEBUG", "lily.server"):
        response = live.post("/v1/chat/completions", messages=ASK, max_tokens=1, user="me", surprise=1)
    assert response.status_code == 200
    assert any(record.getMessage() == "unknown fields are ignored: surprise, user" for record in caplog.records)


def test_one_log_line_per_request(live: Live, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "lily.server"):
        response = live.post("/v1/chat/completions", messages=ASK, max_tokens=2)
        live.post("/v1/chat/completions", messages=[])
    good, bad = (record.getMessage() for record in caplog.records)
    usage = response.json()["usage"]
    assert response.headers["x-request-id"] in good
    assert f"200 prompt={usage['prompt_tokens']} cached=" in good and "completion=2 " in good
    assert "finish=length" in good and "ttft=" in good
    rate = re.search(r"total=\d+ms (\d+\.\d)tok/s ", good)  # the engine's, though the whole answer came in few wakes
    assert rate is not None and float(rate[1]) > 0
    assert " 400 " in bad and "messages" in bad and "ms - finish=-" in bad
