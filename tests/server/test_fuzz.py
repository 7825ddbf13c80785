"""Requests made from the server's own description, valid and not: none of them may be an internal error."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from lily.server.openapi import openapi

from .live import ANSWER, ASK, Live, nano, serving

SCHEMA = schemathesis.openapi.from_dict(openapi())
IS_SOAK = settings.default is not None and settings.default.max_examples > 100
SCHEMA.config.phases.coverage.enabled = IS_SOAK  # hundreds of cases that change one field at a time
CHECKS = [not_a_server_error, content_type_conformance, response_schema_conformance, status_code_conformance]


@pytest.fixture(scope="module")
def small() -> Iterator[Live]:
    """A short context: what is valid is answered soon."""
    with serving(nano(max_context=64)) as live:
        yield live
        body = {"messages": ASK, "temperature": 0, "reasoning_effort": "none"}
        assert live.post("/v1/chat/completions", **body).json()["choices"][0]["message"]["content"] == ANSWER


@SCHEMA.parametrize()
@settings(max_examples=500 if IS_SOAK else 12, suppress_health_check=list(HealthCheck))
def test_no_request_is_an_internal_error(small: Live, case: schemathesis.Case) -> None:
    case.call_and_validate(base_url=small.url, checks=CHECKS, timeout=300)
