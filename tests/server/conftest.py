from __future__ import annotations

from collections.abc import Iterator

import anthropic
import openai
import pytest

from .live import ANSWER, ASK, CHAT, Live, serving


@pytest.fixture(scope="session")
def live() -> Iterator[Live]:
    """One server for all tests that leave it as it was."""
    with serving(ping_seconds=0.2) as live:
        yield live


@pytest.fixture
def nothing_is_left_behind(live: Live) -> Iterator[None]:
    yield
    live.wait_until(lambda: len(live.service.admission) == 0)
    assert live.client.get("/health").status_code == 200


@pytest.fixture(scope="module")
def the_server_lives_on(live: Live) -> Iterator[None]:
    yield
    live.wait_until_idle()
    body = {"messages": ASK, "temperature": 0, "reasoning_effort": "none"}
    assert live.post(CHAT, **body).json()["choices"][0]["message"]["content"] == ANSWER


@pytest.fixture(scope="session")
def openai_client(live: Live) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="session")
def anthropic_client(live: Live) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=live.url, api_key="none", max_retries=0) as client:
        yield client
