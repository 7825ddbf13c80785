"""The ASGI application: which route is answered by what."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from secrets import token_hex
from typing import Final, TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from ..engine import Engine
from .answer import answer
from .body import decode, read_body
from .chat import ChatForm, ChatRequest
from .completions import CompletionForm, CompletionRequest
from .errors import ApiError, describe
from .form import AskedT, Form
from .gate import Gate, dialect_of, with_cors
from .messages import CountRequest, MessagesForm, MessagesRequest
from .openapi import openapi
from .prompts import ApplyTemplateRequest, TokenizeRequest, apply_template, tokenize
from .reply import Headers, encode, request_headers, send_error, send_json
from .responses import ResponsesForm, ResponsesRequest
from .run import Item, Run
from .schemas import Fields
from .service import Service
from .status import page, status

Schema = TypeVar("Schema", bound=Fields)

_log: Final = logging.getLogger("lily.server")


class Endpoint:
    """An ASGI endpoint around a coroutine; an ApiError that it raises becomes the answer."""

    def __init__(self, serve: Callable[[Request, Receive, Send, str], Awaitable[None]]) -> None:
        self._serve = serve

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request_id: str = scope["state"]["request_id"]
        try:
            await self._serve(Request(scope, receive), receive, send, request_id)
        except ApiError as error:
            await send_error(send, error, dialect_of(scope["path"]), request_id)


def generating(service: Service, schema: type[AskedT], form: type[Form[AskedT, Item]]) -> Endpoint:
    """POST: runs the model."""
    decoder = msgspec.json.Decoder(schema)

    async def serve(request: Request, receive: Receive, send: Send, request_id: str) -> None:
        run: Run[Item] = Run()
        try:
            decoded = decode(await read_body(request), decoder)
            model = service.check_model(decoded.model)
        except ApiError as error:
            service.ledger.fail(request_id, form.route, run, error)
            raise
        await answer(service, form(decoded, f"{form.id_prefix}{token_hex(12)}", model), request_id, receive, send, run)

    return Endpoint(serve)


def asking(service: Service, schema: type[Schema], reply: Callable[[Engine, Schema], object]) -> Endpoint:
    """POST: answered from the tokenizer and the template alone, in a pool thread."""
    decoder = msgspec.json.Decoder(schema)

    async def serve(request: Request, receive: Receive, send: Send, request_id: str) -> None:
        decoded = decode(await read_body(request), decoder)
        service.check_model(decoded.model)
        try:
            body = await asyncio.to_thread(reply, service.host.engine, decoded)
        except Exception as error:
            refusal = describe(error, running=False)
            if refusal.status == 500:
                _log.exception("%s failed", request_id)
            raise refusal from None
        await send_json(send, encode(body), request_id)

    return Endpoint(serve)


def reading(reply: Callable[[Request], Awaitable[tuple[bytes, str]]]) -> Endpoint:
    """GET: a body and its content type."""

    async def serve(request: Request, receive: Receive, send: Send, request_id: str) -> None:
        body, content_type = await reply(request)
        headers: Headers = [
            (b"content-type", content_type.encode()),
            (b"content-length", str(len(body)).encode()),
            (b"cache-control", b"no-store"),
            (b"x-content-type-options", b"nosniff"),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return Endpoint(serve)


def create_app(service: Service) -> ASGIApp:
    """The application of one server. Its lifespan loads the engine in the background, and closes it."""

    async def health(request: Request) -> tuple[bytes, str]:
        return encode({"status": "ok"}), "application/json"

    async def ready(request: Request) -> tuple[bytes, str]:
        return encode({"status": "ready", "max_context": service.host.engine.max_context}), "application/json"

    async def models(request: Request) -> tuple[bytes, str]:
        data = [_model(service, name) for name in service.options.served_model_names]
        return encode({"object": "list", "data": data}), "application/json"

    async def model(request: Request) -> tuple[bytes, str]:
        return encode(_model(service, service.check_model(request.path_params["model"]))), "application/json"

    async def metrics(request: Request) -> tuple[bytes, str]:
        return await service.metrics.render(), "text/plain; version=0.0.4; charset=utf-8"

    async def show_page(request: Request) -> tuple[bytes, str]:
        return page(), "text/html; charset=utf-8"

    async def show_status(request: Request) -> tuple[bytes, str]:
        return encode(await status(service)), "application/json"

    async def describe_api(request: Request) -> tuple[bytes, str]:
        return encode(openapi()), "application/json"

    def count_tokens(engine: Engine, request: CountRequest) -> object:
        return {"input_tokens": request.count(engine)}

    endpoints = {
        "/chat/completions": generating(service, ChatRequest, ChatForm),
        "/completions": generating(service, CompletionRequest, CompletionForm),
        "/responses": generating(service, ResponsesRequest, ResponsesForm),
        "/messages": generating(service, MessagesRequest, MessagesForm),
        "/messages/count_tokens": asking(service, CountRequest, count_tokens),
        "/tokenize": asking(service, TokenizeRequest, tokenize),
        "/apply-template": asking(service, ApplyTemplateRequest, apply_template),
    }
    both = {"/models": reading(models), "/models/{model:path}": reading(model), "/health": reading(health)}
    here = {
        "/": reading(show_page),
        "/status": reading(show_status),
        "/ready": reading(ready),
        "/metrics": reading(metrics),
        "/openapi.json": reading(describe_api),
    }
    prefixes = ("/v1", "")
    routes = [Route(path, endpoint, methods=["GET"]) for path, endpoint in here.items()]
    routes += [Route(at + path, endpoint, methods=["POST"]) for at in prefixes for path, endpoint in endpoints.items()]
    routes += [Route(at + path, endpoint, methods=["GET"]) for at in prefixes for path, endpoint in both.items()]

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        loading = asyncio.create_task(service.host.load())
        yield
        await service.host.close()
        await loading

    app = Starlette(routes=routes, lifespan=lifespan, exception_handlers={HTTPException: _refuse, Exception: _fail})
    app.router.redirect_slashes = False
    return with_cors(Gate(app, service.options), service.options)


def _model(service: Service, name: str) -> dict[str, object]:
    host = service.host
    max_context = host.engine.max_context if host.status == "ready" else None
    return {"id": name, "object": "model", "created": host.created, "owned_by": "lily", "max_context": max_context}


async def _refuse(request: Request, error: Exception) -> Response:
    """The framework's own refusals: no such route (404) or method (405)."""
    assert isinstance(error, HTTPException)
    allowed = (error.headers or {}).get("Allow")
    hint = f"it takes {allowed}" if allowed else "/openapi.json lists the routes"
    message = f"{request.method} {request.url.path} is not served here; {hint}"
    code = "method_not_allowed" if error.status_code == 405 else "not_found"
    return _error_response(request, ApiError(error.status_code, message, code=code), error.headers)


async def _fail(request: Request, error: Exception) -> Response:
    """What nobody expected. The framework passes it on afterwards, and its traceback goes to the log."""
    return _error_response(request, describe(error, running=True), None)


def _error_response(request: Request, error: ApiError, headers: Mapping[str, str] | None) -> Response:
    request_id: str = request.scope["state"]["request_id"]
    body = encode(error.body(dialect_of(request.url.path), request_id))
    own = {name.decode(): value.decode() for name, value in request_headers(request_id)}
    return Response(body, error.status, {**(headers or {}), **own}, "application/json")
