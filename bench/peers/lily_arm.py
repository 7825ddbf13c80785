"""Arm: lily, through its public low-level API."""

from bench.peers import measure
from lily import Engine


def main() -> None:
    arguments = measure.options(__doc__ or "").parse_args()
    length = max(arguments.contexts) + arguments.steps
    with Engine(arguments.model, device="cpu", max_context=length, prefix_cache_bytes=0) as engine:
        measure.measure(arguments, engine.session)


if __name__ == "__main__":
    main()
