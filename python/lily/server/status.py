"""The status page at /, and the numbers that it shows."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

import msgspec

from .. import __version__
from .metrics import REFRESH_SECONDS
from .service import Service
from .use import engine_use


@cache
def page() -> bytes:
    """One HTML file with its script and style inside; it fetches /status."""
    return files(__package__).joinpath("status.html").read_bytes()


async def status(service: Service) -> dict[str, object]:
    """What the server does now. `use` is None while the device is in a step that is not waited for, or loads."""
    host, admission = service.host, service.admission
    use = await host.between_steps(engine_use, REFRESH_SECONDS)
    ready = host.status == "ready"
    running = [
        {
            "cached_tokens": run.cached_tokens,
            "prompt_tokens": run.prompt_tokens,
            "completion_tokens": run.completion_tokens,
            "seconds": run.elapsed_seconds,
            "tokens_per_second": run.tokens_per_second,
        }
        for run in admission.runs
    ]
    return {
        "version": __version__,
        "status": host.status,
        "failure": None if host.failure is None else str(host.failure),
        "models": service.options.served_model_names,
        "loaded_bytes": host.loaded_bytes,
        "total_bytes": host.total_bytes,
        "device": host.engine.runtime.device_description if ready else None,
        "max_context": host.engine.max_context if ready else None,
        "num_running": admission.num_running,
        "num_waiting": admission.num_waiting,
        "requests": running,
        "use": None if use is None else msgspec.to_builtins(use),
        "recent": [msgspec.to_builtins(entry) for entry in service.ledger.recent],
    }
