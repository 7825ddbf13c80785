"""Stop strings, matched on bytes so that token borders and incomplete characters do not matter."""

from __future__ import annotations

from collections.abc import Sequence


class StopMatcher:
    """Finds the stop string that is complete first; of several that end together the longest.

    What could still become a match is held back, so no byte of a stop string is ever released too early. The result
    does not depend on how the bytes are split: a match that crosses a border starts inside the held-back bytes.
    """

    def __init__(self, stop: Sequence[str]) -> None:
        self._stops = [(string, string.encode()) for string in stop]
        # Proper prefixes, longest first: the longest one at the end of the text is held back.
        prefixes = {encoded[:n] for _, encoded in self._stops for n in range(1, len(encoded))}
        self._prefixes = sorted(prefixes, key=len, reverse=True)
        self._held = b""

    def push(self, piece: bytes) -> tuple[bytes, str | None]:
        """Add bytes; returns those that are safe to show and the stop string if one is complete.

        After a match the released bytes end where the stop string begins and no more may be pushed.
        """
        text = self._held + piece
        best: tuple[int, int, str] | None = None
        for string, encoded in self._stops:
            start = text.find(encoded)
            if start >= 0 and (best is None or (start + len(encoded), start) < best[:2]):
                best = (start + len(encoded), start, string)
        if best is not None:
            self._held = b""
            return text[: best[1]], best[2]
        held = next((prefix for prefix in self._prefixes if text.endswith(prefix)), b"")
        self._held = held
        return text[: len(text) - len(held)], None

    def flush(self) -> bytes:
        """The held-back bytes: the text ends here, so they are not part of a match."""
        held, self._held = self._held, b""
        return held
