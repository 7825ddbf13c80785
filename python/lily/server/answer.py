"""One request from its body to the end of its answer, the same way for all routes that generate."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Final

from starlette.types import Receive, Send

from .errors import CLIENT_CLOSED, ApiError, describe
from .form import AskedT, Form
from .reply import SSE_HEADERS, encode, request_headers, send_error, send_json
from .run import Item, Run
from .service import Service
from .silence import Silence

_log: Final = logging.getLogger("lily.server")


async def answer(
    service: Service, form: Form[AskedT, Item], request_id: str, receive: Receive, send: Send, run: Run[Item]
) -> None:
    """Serve one request; a client that leaves cancels it at its next step."""
    work = asyncio.create_task(_serve(service, form, request_id, send, run))
    watch = asyncio.create_task(_disconnect(receive))
    try:
        await asyncio.wait((work, watch), return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            run.close()
            work.cancel()
            with suppress(asyncio.CancelledError):
                await work
            service.ledger.fail(request_id, form.route, run, ApiError(CLIENT_CLOSED, "the client left"))
        else:
            work.result()
    finally:
        for task in (work, watch):
            task.cancel()
        run.close()
        service.admission.leave(run)


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _serve(service: Service, form: Form[AskedT, Item], request_id: str, send: Send, run: Run[Item]) -> None:
    try:
        engine = service.host.engine
        service.admission.enter(run, engine.runtime.max_timelines)
        await run.start(lambda on_item: form.start(engine, on_item))
    except Exception as error:
        refusal = describe(error, running=False, names=form.field_names)
        if refusal.status == 500:
            _log.exception("%s failed", request_id)
        service.ledger.fail(request_id, form.route, run, refusal)
        await send_error(send, refusal, form.dialect, request_id)
        return
    serve = _stream if form.wants_stream else _respond
    try:
        finish_reason = await serve(service, form, request_id, send, run)
    except ApiError as error:
        service.ledger.fail(request_id, form.route, run, error)
    else:
        service.ledger.finish(request_id, form.route, run, finish_reason)


async def _respond(service: Service, form: Form[AskedT, Item], request_id: str, send: Send, run: Run[Item]) -> str:
    items: list[Item] = []
    try:
        while not items or items[-1].finish_reason is None:
            items += await run.next()
        body = encode(form.whole(items))
    except Exception as error:
        failure = _describe_running(error, request_id, service)
        await send_error(send, failure, form.dialect, request_id)
        raise failure from None
    await send_json(send, body, request_id)
    return str(items[-1].finish_reason)


async def _stream(service: Service, form: Form[AskedT, Item], request_id: str, send: Send, run: Run[Item]) -> str:
    await send({"type": "http.response.start", "status": 200, "headers": [*SSE_HEADERS, *request_headers(request_id)]})
    finish_reason: str | None = None
    silence = Silence(service.options.ping_seconds, run.nudge)
    try:
        await _send(send, form.begin(run))
        while finish_reason is None:
            items = await run.next()
            data = b""
            if run.progress is not None:
                data = form.progress(run.progress, run.cached_tokens or 0, run.elapsed_seconds - run.started_seconds)
                run.progress = None
            if items:
                data += form.delta(items)
                finish_reason = items[-1].finish_reason
            if not data and silence.is_over:
                data = form.ping
            if data:
                silence.restart()
                await _send(send, data)
        await _send(send, form.end(), more_body=False)
    except Exception as error:
        failure = _describe_running(error, request_id, service)
        await _send(send, form.failed(failure, request_id), more_body=False)
        raise failure from None
    finally:
        silence.close()
    return finish_reason


def _describe_running(error: Exception, request_id: str, service: Service) -> ApiError:
    failure = describe(error, running=True)
    if failure.status == 500:
        _log.exception("%s failed", request_id)
    service.host.note(error)
    return failure


async def _send(send: Send, data: bytes, *, more_body: bool = True) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": more_body})
