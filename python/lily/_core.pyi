from collections.abc import Callable, Mapping, Sequence

import numpy
import numpy.typing

class Device:
    def __init__(
        self, name: str, *, sizes: Mapping[str, int], rms_norm_eps: float = 1e-06, threads: int = 0, debug: str = ""
    ) -> None: ...
    @property
    def description(self) -> str: ...
    @property
    def notes(self) -> str: ...
    @property
    def memory_bytes(self) -> int: ...
    def kernel_names(self) -> list[str]: ...
    def run(
        self,
        kernel: str,
        args: bytes,
        buffers: Sequence[numpy.typing.NDArray[numpy.generic]],
        extent: tuple[int, int, int],
        ranges: Sequence[tuple[int, int] | None] | None = None,
    ) -> None: ...

def read_safetensors_header(path: str) -> list[tuple[str, str, list[int], int, int]]: ...
def load_weights(
    folder: str, config: ModelConfig, device: str = "cpu", progress: Callable[[int, int], None] | None = None
) -> tuple[dict[str, tuple[str, list[numpy.typing.NDArray[numpy.uint8]]]], dict[str, int]]: ...

class ModelConfig:
    def __init__(
        self,
        *,
        family: str,
        layer_types: Sequence[str],
        sizes: Mapping[str, int],
        rms_norm_eps: float,
        rope_theta: float,
        quantization: Mapping[str, int],
    ) -> None: ...

class Sampling:
    def __init__(
        self,
        *,
        temperature: float = 0.0,
        top_p: float = 1.0,
        top_k: int = 0,
        min_p: float = 0.0,
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        repetition_penalty: float = 1.0,
        seed: int = 0,
        logprobs: int | None = None,
        bias: Sequence[tuple[int, float]] = [],
    ) -> None: ...

class SampleResult:
    @property
    def token_id(self) -> int: ...
    @property
    def logprob(self) -> float: ...
    @property
    def top_logprobs(self) -> list[tuple[int, float]]: ...

class Snapshot:
    @property
    def num_tokens(self) -> int: ...
    def read_state(
        self,
    ) -> tuple[
        numpy.typing.NDArray[numpy.float32],
        numpy.typing.NDArray[numpy.float32],
        list[numpy.typing.NDArray[numpy.float32] | numpy.typing.NDArray[numpy.float16]],
    ]: ...

class Timeline:
    @property
    def num_tokens(self) -> int: ...
    @property
    def logits(self) -> numpy.typing.NDArray[numpy.float32]: ...
    def snapshot(self) -> Snapshot: ...
    def restore(self, snapshot: Snapshot) -> None: ...
    def fork(self) -> Timeline: ...
    def reserve(self, num_tokens: int) -> None: ...
    def read_state(
        self,
    ) -> tuple[
        numpy.typing.NDArray[numpy.float32],
        numpy.typing.NDArray[numpy.float32],
        list[numpy.typing.NDArray[numpy.float32] | numpy.typing.NDArray[numpy.float16]],
    ]: ...
    def load_state(
        self,
        num_tokens: int,
        recurrent_state: numpy.typing.NDArray[numpy.float32],
        conv_state: numpy.typing.NDArray[numpy.float32],
        kv: Sequence[numpy.typing.NDArray[numpy.float32] | numpy.typing.NDArray[numpy.float16]],
        logits: numpy.typing.NDArray[numpy.float32] | None = None,
    ) -> None: ...
    def reset(self) -> None: ...
    def set_token_counts(self, prompt_ids: Sequence[int], output_ids: Sequence[int]) -> None: ...
    def set_token_mask(self, mask: numpy.typing.NDArray[numpy.uint32] | None = None) -> None: ...
    def close(self) -> None: ...

PAGE_TOKENS: int = 256

def default_device() -> str: ...

class CancelFlag:
    def __init__(self) -> None: ...
    def set(self) -> None: ...
    def is_set(self) -> bool: ...

class Runtime:
    def __init__(
        self,
        folder: str,
        config: ModelConfig,
        *,
        device: str = "auto",
        dtype: str = "auto",
        max_context: int | None = None,
        model_context: int = 0,
        memory_limit: int,
        prefix_cache_bytes: int | None = None,
        debug: str = "",
        progress: Callable[[int, int], None] | None = None,
    ) -> None: ...
    @property
    def device(self) -> str: ...
    @property
    def device_description(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    @property
    def max_context(self) -> int: ...
    @property
    def max_timelines(self) -> int: ...
    @property
    def max_chunk_tokens(self) -> int: ...
    @property
    def max_step_rows(self) -> int: ...
    @property
    def memory_limit(self) -> int: ...
    @property
    def memory_bytes(self) -> dict[str, int]: ...
    @property
    def state_use(self) -> dict[str, int]: ...
    def discard_free(self) -> None: ...
    @property
    def load_report(self) -> dict[str, int]: ...
    def decode_stats(self, context: int) -> dict[str, int]: ...
    def prefill_stats(self, rows: int) -> dict[str, int]: ...
    def timeline(self) -> Timeline: ...
    def prefill(
        self,
        timeline: Timeline,
        token_ids: numpy.typing.NDArray[numpy.uint32],
        *,
        wants_logits: bool,
        sampling: Sampling | None = None,
        cancel: CancelFlag | None = None,
    ) -> SampleResult | None: ...
    def decode(
        self,
        timelines: Sequence[Timeline],
        token_ids: Sequence[int] | None,
        *,
        sampling: Sequence[Sampling | None] | None = None,
        masks: Sequence[Callable[[], numpy.typing.NDArray[numpy.uint32]] | None] | None = None,
    ) -> list[SampleResult | None]: ...
    def close(self) -> None: ...

class ProgramOutline:
    def __init__(self, *, folder: str, config: ModelConfig, max_context: int, device_bytes: int) -> None: ...
    @property
    def chunk_tokens(self) -> int: ...
    def decode(self, rows: int, context: int) -> list[tuple[str, int, list[int], list[tuple[str, int, str]]]]: ...
    def prefill(self, rows: int) -> list[tuple[str, int, list[int], list[tuple[str, int, str]]]]: ...
