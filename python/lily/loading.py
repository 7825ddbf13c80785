"""Loading a model into a runtime, on the owner thread, with progress."""

from __future__ import annotations

import os
from pathlib import Path

from . import _core
from .config import ModelConfig
from .engine_options import DeviceName, DtypeName
from .errors import CancelledError
from .owner import Owner, Request, Steps
from .progress import Progress, ProgressReport


def load_runtime(
    owner: Owner,
    folder: Path,
    config: ModelConfig,
    *,
    device: DeviceName,
    dtype: DtypeName,
    max_context: int | None,
    memory_limit: int,
    prefix_cache_bytes: int | None,
    report: ProgressReport,
) -> _core.Runtime:
    """The model in `folder`, ready to run. The owner closes it at its exit. Raises as Engine."""
    native = _core.ModelConfig(**config.core_arguments())
    debug = f"LILY_{(_core.default_device() if device == 'auto' else device).upper()}_DEBUG"

    def job(request: Request[Progress, _core.Runtime]) -> Steps[Progress, _core.Runtime]:
        def push(done: int, total: int) -> None:
            if request.cancel_flag.is_set():
                raise CancelledError("loading was cancelled")
            request.push(Progress(done, total))

        runtime = _core.Runtime(
            str(folder),
            native,
            device=device,
            dtype=dtype,
            max_context=max_context,
            model_context=config.max_position_embeddings or 0,
            memory_limit=memory_limit,
            prefix_cache_bytes=prefix_cache_bytes,
            debug=os.environ.get(debug, ""),
            progress=push,
        )
        owner.at_exit(runtime.close)
        return runtime
        yield  # makes this a generator

    with report:
        request = owner.submit(job)
        for progress in request:
            report.update(progress)
        return request.result()
