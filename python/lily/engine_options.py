"""Options of an engine: what they may be, told before anything is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, get_args

from .progress import ProgressOption

DeviceName = Literal["auto", "metal", "cuda", "cpu"]
DtypeName = Literal["auto", "float32", "float16", "bfloat16"]


def check_options(
    *,
    model: str | Path,
    device: DeviceName,
    dtype: DtypeName,
    cache_dir: str | Path | None,
    chat_template: str | Path | None,
    progress: ProgressOption,
) -> None:
    """Raises TypeError or ValueError for what no model could be loaded with."""
    for name, path in (("model", model), ("cache_dir", cache_dir), ("chat_template", chat_template)):
        if not isinstance(path, (str, Path)) and not (path is None and name != "model"):
            raise TypeError(f"{name} must be a str or a Path, not {type(path).__name__}")
    if cache_dir == "":  # Path("") is the current folder, which nobody asked for
        raise ValueError("cache_dir is empty; give a folder ('.' is the current one)")
    if progress is not None and not isinstance(progress, bool) and not callable(progress):
        raise TypeError(f"progress must be True, False or a function of (done, total), not {type(progress).__name__}")
    for name, value, choices in (
        ("device", device, get_args(DeviceName)),
        ("dtype", dtype, get_args(DtypeName)),
    ):
        if value not in choices:
            raise ValueError(f"{name} is {value!r}; it must be one of {', '.join(map(repr, choices))}")


def check_max_context(max_context: int | None, model_limit: int | None) -> None:
    """Raises TypeError or ValueError. model_limit: tokens that the model is made for; None is unknown."""
    if max_context is None:
        return
    if isinstance(max_context, bool) or not isinstance(max_context, int):
        raise TypeError(f"max_context must be an int of tokens, not {type(max_context).__name__}")
    if max_context < 1:
        raise ValueError(f"max_context is {max_context}; it must be at least 1 token")
    if model_limit is not None and max_context > model_limit:
        raise ValueError(f"max_context is {max_context}, more than the model's limit of {model_limit} tokens")
