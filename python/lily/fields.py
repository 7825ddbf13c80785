"""Fields of a checkpoint's JSON files: what is wrong is refused by the name of file and field."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn, TypeGuard

from .errors import CheckpointError
from .files import read_json, shown

MAX_SIZE = 2**24  # of one size and of a product of two: devices count in 32 bits


class Fields:
    """A JSON object of a file, read field by field. Raises CheckpointError."""

    def __init__(self, path: Path, values: Mapping[str, object], prefix: str = "") -> None:
        self.path = path
        self.values = values
        self.prefix = prefix

    def refuse(self, name: str, expected: str, *, found: str | None = None, fix: str = "") -> NoReturn:
        field = self.prefix + name
        if found is None:
            found = shown(self.values[name]) if name in self.values else "nothing"
        text = f"{self.path}: field {field}: expected {expected}, found {found}" + (f". {fix}" if fix else "")
        raise CheckpointError(text, path=str(self.path), field=field, expected=expected, found=found)

    def has(self, name: str) -> bool:
        """Whether the field is there and not null."""
        return self.values.get(name) is not None

    def section(self, name: str) -> Fields:
        value = self.values.get(name)
        if not isinstance(value, dict):
            self.refuse(name, "an object")
        return Fields(self.path, value, f"{self.prefix}{name}.")

    def size(self, name: str, default: int | None = None, *, multiple_of: int = 1, largest: int = MAX_SIZE) -> int:
        """A whole number from 1 to `largest`."""
        value = self.values.get(name, default)
        if not is_int(value) or not 1 <= value <= largest or value % multiple_of:
            kind = "a whole number" if multiple_of == 1 else f"a multiple of {multiple_of}"
            self.refuse(name, f"{kind} from {multiple_of} to {largest}")
        return value

    def positive(self, name: str) -> float:
        """A number > 0 within the range of float32."""
        value = self.values.get(name)
        if not is_number(value) or not 1e-37 < value < 1e38:
            self.refuse(name, "a number from 1e-37 to 1e38")
        return float(value)

    def require(self, name: str, *allowed: object) -> None:
        """Refuses a field that is there with another value than those allowed. Absent and null mean the default."""
        value = self.values.get(name)
        if value is not None and not any(type(value) is type(a) and value == a for a in allowed):
            self.refuse(name, " or ".join(shown(a) for a in allowed))

    def token_ids(self, name: str, vocab_size: int) -> list[int]:
        """A token id, a list of them, or nothing."""
        value = self.values.get(name)
        listed: list[object] = value if isinstance(value, list) else [] if value is None else [value]
        ids = [i for i in listed if is_int(i) and 0 <= i < vocab_size]
        if len(ids) != len(listed):
            self.refuse(name, f"token ids from 0 to {vocab_size - 1}")
        return ids


def read_fields(path: Path) -> Fields | None:
    """The object in a JSON file; None when there is no such file."""
    values = read_json(path)
    return None if values is None else Fields(path, values)


def is_int(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
