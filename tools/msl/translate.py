"""Makes a shader digestible for clang's C++ front end and reads the signatures of its kernels.

Input is the text after the preprocessor, in which Metal's headers were empty. Three edits, lines stay where they are:

    float4(a, b)            -> msl_make_float4(a, b)           a functional cast that clang lacks
    threadgroup float x[N]; -> MSL_THREADGROUP_VARIABLE(kernel) float x[N];
    kernel, [[kernel]]      -> MSL_KERNEL
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from .errors import ShaderError
from .tokens import Token, tokenize

_CONSTRUCTOR = re.compile(r"(?:bool|float|half|bfloat|int|uint|short|ushort|char|uchar|long|ulong)[234]|bfloat|vec")
_ID_TYPE = re.compile(r"(?:const )?(?:uint|ushort)([23]?)")
_ATTRIBUTE = re.compile(r"(\w+)(?:\((\d+)\))?")

# Attributes that give a thread its place: those of three dimensions and those of one.
POSITIONS = (
    "thread_position_in_grid", "thread_position_in_threadgroup", "threadgroup_position_in_grid",
    "threads_per_threadgroup", "threadgroups_per_grid", "threads_per_grid",
)  # fmt: skip
INDICES = (
    "thread_index_in_threadgroup", "thread_index_in_simdgroup", "simdgroup_index_in_threadgroup",
    "simdgroups_per_threadgroup", "threads_per_simdgroup",
)  # fmt: skip
MAX_BUFFERS = 31


@dataclass(frozen=True)
class Parameter:
    """A parameter of a kernel: its type as written, and its attribute with the index where it has one."""

    type: str
    name: str
    attribute: str
    index: int = 0

    @property
    def is_buffer(self) -> bool:
        return self.attribute == "buffer"

    @property
    def is_writable(self) -> bool:
        words = self.type.split()
        return self.is_buffer and "device" in words and "const" not in words


@dataclass
class Kernel:
    """An entry point of a shader."""

    name: str
    parameters: list[Parameter]
    depth: int = 0  # of braces around it: namespaces
    has_threadgroup_variables: bool = False

    def mask(self, kind: str) -> int:
        """Bit i: argument i is_buffer or is_writable."""
        return sum(1 << p.index for p in self.parameters if getattr(p, kind))


@dataclass
class Translation:
    """C++ text and the kernels in it."""

    text: str
    kernels: list[Kernel] = field(default_factory=list)


def translate(expanded: str, file: str) -> Translation:
    """C++ for a shader after the preprocessor; ShaderError for what can be said at this point already."""
    return _Translator(tokenize(expanded, file)).run()


class _Translator:
    def __init__(self, tokens: list[Token]) -> None:
        self._all = tokens
        self._tokens = [t for t in tokens if not t.is_blank]
        self._out = {id(t): t.text for t in tokens}
        self._kernels: list[Kernel] = []

    def run(self) -> Translation:
        depth = 0
        inside: Kernel | None = None
        at = 0
        while at < len(self._tokens):
            word = self._word(at)
            if word in "{}":
                depth += 1 if word == "{" else -1
                if inside and depth == inside.depth:
                    inside = None
            elif _CONSTRUCTOR.fullmatch(word):
                self._constructor(at)
            elif word == "kernel" and not inside:
                at = self._kernel(at, depth)
                inside = self._kernels[-1]
                continue
            elif word == "threadgroup" and self._declares_variable(at):
                self._threadgroup_variable(at, inside, depth)
            at += 1
        return Translation("".join(self._out[id(t)] for t in self._all), self._kernels)

    def _word(self, at: int) -> str:
        return self._tokens[at].text if 0 <= at < len(self._tokens) else ""

    def _replace(self, at: int, text: str) -> None:
        self._out[id(self._tokens[at])] = text

    def _fail(self, at: int, message: str) -> ShaderError:
        token = self._tokens[min(at, len(self._tokens) - 1)]
        return ShaderError(f"{token.file}:{token.line}: error: {message}")

    def _constructor(self, at: int) -> None:
        word, after = self._word(at), at + 1
        if word == "vec":
            after = self._after_angles(at + 1) if self._word(at + 1) == "<" else 0
        if (
            self._word(after) == "("
            and self._word(after + 1) not in ("&", "*")
            and self._word(at - 1) not in (".", "struct")
        ):
            self._replace(at, f"msl_make_{word}")

    def _after_angles(self, at: int) -> int:
        depth = 0
        while at < len(self._tokens):
            depth += {"<": 1, ">": -1, ">>": -2}.get(self._word(at), 0)
            at += 1
            if depth <= 0:
                break
        return at

    def _kernel(self, at: int, depth: int) -> int:
        """Reads a kernel's head from the word `kernel` on; returns the place of its body."""
        first = at
        if self._word(at - 1) == "[[":
            if self._word(at + 1) != "]]":
                raise self._fail(at, "[[kernel]] must stand alone")
            self._replace(at - 1, "")
            self._replace(at + 1, "")
            at += 1
            first -= 1
        if self._word(first - 1) == ">":
            raise self._fail(at, "a kernel cannot be a template here: call the template from a plain kernel")
        self._replace(first if self._word(first) == "kernel" else first + 1, "MSL_KERNEL")
        if self._word(at + 1) != "void" or self._word(at + 3) != "(":
            raise self._fail(at, "expected 'kernel void NAME('")
        name, opening = self._word(at + 2), at + 3
        closing, open_ = opening, 0
        while True:
            open_ += {"(": 1, ")": -1}.get(self._word(closing), 0)
            if open_ == 0:
                break
            closing += 1
            if closing >= len(self._tokens):
                raise self._fail(at, f"the parameters of '{name}' do not end")
        if self._word(closing + 1) != "{":
            raise self._fail(at, f"kernel '{name}' has no body")
        parameters = [self._parameter(opening + 1 + begin, part) for begin, part in self._parts(opening + 1, closing)]
        self._kernels.append(Kernel(name, parameters, depth))
        return closing + 1

    def _parts(self, begin: int, end: int) -> list[tuple[int, Sequence[str]]]:
        """Offset and words of each parameter between two places."""
        words = [self._word(i) for i in range(begin, end)]
        parts, depth, start = [], 0, 0
        for i, word in enumerate([*words, ","]):
            depth += 1 if word in ("(", "[", "{", "<", "[[") else -1 if word in (")", "]", "}", ">", "]]") else 0
            if word == "," and depth == 0:
                if i > start:
                    parts.append((start, words[start:i]))
                start = i + 1
        return parts

    def _parameter(self, at: int, words: Sequence[str]) -> Parameter:
        if "[[" not in words:
            raise self._fail(at, f"kernel parameter '{words[-1]}' has no attribute")
        opening, closing = words.index("[["), words.index("]]")
        name, text = words[opening - 1], "".join(words[opening + 1 : closing])
        match = _ATTRIBUTE.fullmatch(text)
        if match and match[1] == "threadgroup":
            raise self._fail(at, f"'{name}': declare threadgroup memory in the kernel, its size is part of the code")
        if not match or match[1] not in (*POSITIONS, *INDICES, "buffer"):
            raise self._fail(at, f"attribute [[{text}]] of '{name}' is not supported")
        index = int(match[2] or 0)
        if index >= MAX_BUFFERS:
            raise self._fail(at, f"[[{text}]]: the last index is {MAX_BUFFERS - 1}")
        type_words = list(words[: opening - 1])
        space = next((w for w in type_words if w in ("device", "constant", "threadgroup")), "")
        if match[1] == "buffer" and (space not in ("device", "constant") or not {"*", "&"} & set(type_words)):
            raise self._fail(at, f"'{name}' must be a pointer or reference to device or constant memory")
        if match[1] != "buffer":
            id_type = _ID_TYPE.fullmatch(" ".join(type_words))
            if not id_type or (id_type[1] and match[1] in INDICES):
                raise self._fail(
                    at, f"'{name}' must be a uint or ushort{'' if match[1] in INDICES else ', or a vector of them'}"
                )
        return Parameter(" ".join(type_words), name, match[1], index)

    def _declares_variable(self, at: int) -> bool:
        """Whether `threadgroup` at this place starts the declaration of a variable and not of a pointer."""
        if self._word(at - 1) not in (";", "{", "}", ")", ""):
            return False
        while self._word(at) not in (";", "=", "[", "*", "&", "(", ")", ""):
            at += 1
        return self._word(at) in (";", "=", "[")

    def _threadgroup_variable(self, at: int, kernel: Kernel | None, depth: int) -> None:
        if kernel is None:
            raise self._fail(at, "a threadgroup variable must be declared in a kernel")
        if depth != kernel.depth + 1:
            raise self._fail(at, "a threadgroup variable must be declared at the top of its kernel")
        end = at
        while self._word(end) not in (";", ""):
            if self._word(end) == "=":
                raise self._fail(end, "a threadgroup variable cannot have an initialiser")
            end += 1
        self._replace(at, f"MSL_THREADGROUP_VARIABLE({kernel.name})")
        kernel.has_threadgroup_variables = True
