"""The HTTP server: the engine behind the routes of OpenAI, Anthropic and Open Responses. Needs the extra `[server]`."""

try:
    import h11
    import msgspec
    import prometheus_client
    import starlette
    import uvicorn
except ImportError as error:
    from ..extras import install_hint

    raise ImportError(
        f"the server needs more packages ({error.name} is missing); install them with: {install_hint('server')}"
    ) from None

from .app import create_app
from .options import ServerOptions
from .process import serve

__all__ = ["ServerOptions", "create_app", "serve"]

del h11, msgspec, prometheus_client, starlette, uvicorn
