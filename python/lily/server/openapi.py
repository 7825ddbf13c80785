"""The description of the routes at /openapi.json, made from the schemas that decode the requests."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import msgspec

from .. import __version__
from .chat import ChatRequest
from .completions import CompletionRequest
from .messages import CountRequest, MessagesRequest
from .prompts import ApplyTemplateRequest, TokenizeRequest
from .responses import ResponsesRequest
from .schemas import JsonObject

_REQUESTS: Final[dict[str, tuple[type[msgspec.Struct], str]]] = {
    "/v1/chat/completions": (ChatRequest, "Answer a chat, in OpenAI's form"),
    "/v1/completions": (CompletionRequest, "Complete text or token ids, in OpenAI's form"),
    "/v1/responses": (ResponsesRequest, "Answer items, in the form of Open Responses"),
    "/v1/messages": (MessagesRequest, "Answer a chat, in Anthropic's form"),
    "/v1/messages/count_tokens": (CountRequest, "Count the tokens of such a chat"),
    "/tokenize": (TokenizeRequest, "Token ids of text or of a chat"),
    "/apply-template": (ApplyTemplateRequest, "The prompt of a chat, as text and as token ids"),
}
_STREAMS: Final = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")
_READS: Final = {
    "/v1/models": ("The models that are served", "application/json"),
    "/health": ("Whether the server lives", "application/json"),
    "/ready": ("Whether the model is loaded", "application/json"),
    "/status": ("What the server does now", "application/json"),
    "/metrics": ("Metrics for Prometheus", "text/plain"),
}
# Before OpenAPI 3.2 the schema of a stream is that of each of its events.
_EVENT: Final[JsonObject] = {
    "type": "object",
    "required": ["data"],
    "properties": {
        "event": {"type": "string"},
        "data": {"type": "string", "description": "JSON; [DONE] at the end of chats and completions"},
    },
}
_ERROR: Final[JsonObject] = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}


@cache
def openapi() -> JsonObject:
    """OpenAPI 3.1."""
    schemas = [schema for schema, _ in _REQUESTS.values()]
    _, components = msgspec.json.schema_components(schemas, ref_template="#/components/schemas/{name}")
    paths: JsonObject = {path: {"post": _post(path, *_REQUESTS[path])} for path in _REQUESTS}
    paths |= {path: {"get": _get(summary, kind)} for path, (summary, kind) in _READS.items()}
    return {
        "openapi": "3.1.0",
        "info": {"title": "lily", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": {**components, "Error": _ERROR},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    }


def _post(path: str, schema: type[msgspec.Struct], summary: str) -> JsonObject:
    answer: dict[str, Any] = {"application/json": {"schema": {"type": "object"}}}
    if path in _STREAMS:
        answer["text/event-stream"] = {"schema": _EVENT}
    body = {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema.__name__}"}}}
    return {
        "summary": summary,
        "requestBody": {"required": True, "content": body},
        "responses": {"200": {"description": "The answer", "content": answer}, "default": _error()},
    }


def _get(summary: str, kind: str) -> JsonObject:
    content = {kind: {"schema": {"type": "object" if kind.endswith("json") else "string"}}}
    return {
        "summary": summary,
        "responses": {"200": {"description": "The answer", "content": content}, "default": _error()},
    }


def _error() -> JsonObject:
    schema = {"$ref": "#/components/schemas/Error"}
    return {"description": "What was wrong", "content": {"application/json": {"schema": schema}}}
