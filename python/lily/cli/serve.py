"""`lily serve`: the engine behind HTTP."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable

from lily import Engine
from lily.extras import install_hint

from .options import Verbs, add_engine_flags, make_engine, usage_errors


def add_parser(verbs: Verbs) -> None:
    parser = verbs.add_parser(
        "serve",
        help="answer HTTP requests in the forms of OpenAI, Anthropic and Open Responses",
        description="It answers at once; /ready says when the model is loaded. Its packages are an extra: "
        f"{install_hint('server')}.",
    )
    add_engine_flags(parser, default_model="lily-nano", log_level="info")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: this machine only)")
    parser.add_argument("--port", type=int, default=8000, help="0 takes any free one (default: %(default)s)")
    parser.add_argument(
        "--api-key",
        metavar="KEY",
        default=os.environ.get("LILY_API_KEY"),
        help="clients must send it; better in the environment as LILY_API_KEY, where other users do not see it",
    )
    parser.add_argument(
        "--allowed-origins",
        nargs="+",
        metavar="ORIGIN",
        default=[],
        help="web origins whose pages may call it; * is all",
    )
    parser.add_argument(
        "--served-model-name",
        nargs="+",
        metavar="NAME",
        help="names of the model in requests; default: as given",
    )
    parser.add_argument(
        "--max-queue",
        type=int,
        default=64,
        metavar="N",
        help="requests that may wait (default: %(default)s)",
    )
    parser.add_argument(
        "--ping-seconds",
        type=float,
        default=5.0,
        metavar="SECONDS",
        help="the longest silence of a stream, then it carries a comment (default: %(default)s)",
    )
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from lily.server import ServerOptions, serve  # only this verb needs the extra

    def make(report: Callable[[int, int], None]) -> Engine:
        return make_engine(options, progress=report)

    with usage_errors():
        server_options = ServerOptions(
            host=options.host,
            port=options.port,
            api_key=options.api_key,
            allowed_origins=tuple(options.allowed_origins),
            served_model_names=tuple(options.served_model_name or [options.model]),
            max_queue=options.max_queue,
            ping_seconds=options.ping_seconds,
        )
    # The server raises the signal again once it has stopped, and ending by a signal is a failure to supervisors.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    serve(make, server_options)
    return 0
