"""Text of a shader as tokens that keep their place."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

_TOKEN = re.compile(
    r"""^[ \t]*\#[^\n]*            # a directive, or a line marker of the preprocessor
      | //[^\n]* | /\*.*?\*/       # comments
      | "(?:\\.|[^"\\])*" | '(?:\\.|[^'\\])*'
      | \s+
      | [A-Za-z_]\w*
      | \.?\d(?:[eEpP][+-]|[\w.])* # numbers
      | \[\[ | \]\] | :: | -> | \#\# | <<=? | >>=? | [-+*/%&|^=!<>]= | && | \|\| | \+\+ | --
      | .""",
    re.VERBOSE | re.DOTALL | re.MULTILINE,
)
_MARKER = re.compile(r'\s*#\s*(?:line\s+)?(\d+)(?:\s+"([^"]*)")?')


@dataclass
class Token:
    """One token; `file` and `line` are those of the source, whatever was included or expanded."""

    text: str
    file: str
    line: int

    @property
    def is_blank(self) -> bool:
        """White space, a comment or a directive: nothing that the grammar sees."""
        return self.text.isspace() or self.text.startswith(("//", "/*")) or self.text.lstrip(" \t").startswith("#")


def tokenize(text: str, file: str) -> list[Token]:
    """All tokens of `text`, blanks included: joined, they are the text again."""
    return list(_places(_TOKEN.findall(text), file))


def _places(pieces: Iterable[str], file: str) -> Iterator[Token]:
    line = 1
    for piece in pieces:
        yield Token(piece, file, line)
        marker = _MARKER.match(piece)
        if marker:
            line = int(marker[1]) - 1  # the newline behind the marker counts
            file = marker[2] or file
        else:
            line += piece.count("\n")
