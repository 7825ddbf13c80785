"""What is no text, for errors: lone surrogates, which a string may hold but which have no bytes, and other bytes."""

from __future__ import annotations


def check_unicode(name: str, text: str) -> None:
    """Raises ValueError, naming the place, for a lone surrogate."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{name} holds {lone_surrogate(text[error.start], error.start)}") from None


def lone_surrogate(character: str, place: int | None = None) -> str:
    """What is wrong with one, for an error message."""
    at = "" if place is None else f" at {place}"
    text = f"a lone surrogate ({character!r}{at}), which no text contains"
    if "\udc80" <= character <= "\udcff":  # how Python keeps such bytes of arguments and of names of files
        text += f"; it stands for the byte 0x{ord(character) - 0xDC00:02x} of something that is not UTF-8"
    return text


def first_wrong_byte(error: UnicodeDecodeError) -> str:
    """Where bytes are not UTF-8: "byte 0xff at place 11"."""
    return f"byte 0x{error.object[error.start]:02x} at place {error.start}"
