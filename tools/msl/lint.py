"""Finds what clang's C++ front end takes and Metal's compiler does not (PyPI libclang)."""

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import clang.cindex as ci

from .build import INCLUDE, Source, cplusplus_of, expand
from .errors import ShaderError
from .tokens import Token, tokenize
from .translate import Translation, translate

_KIND = ci.CursorKind
_FUNCTIONS = (_KIND.FUNCTION_DECL, _KIND.FUNCTION_TEMPLATE, _KIND.CXX_METHOD)
_BANNED = {
    _KIND.GOTO_STMT: "goto", _KIND.CXX_NEW_EXPR: "new", _KIND.CXX_DELETE_EXPR: "delete", _KIND.CXX_THROW_EXPR: "throw",
    _KIND.CXX_TRY_STMT: "try", _KIND.CXX_DYNAMIC_CAST_EXPR: "dynamic_cast", _KIND.CXX_TYPEID_EXPR: "typeid",
    _KIND.ASM_STMT: "asm", _KIND.UNION_DECL: "a union", _KIND.CXX_BASE_SPECIFIER: "a base class",
}  # fmt: skip
_BANNED_WORDS = {
    "INFINITY": "a mask is a large finite number: fast math knows no infinity",
    "NAN": "fast math knows no NaN",
    "virtual": "virtual is not MSL",
    "thread_local": "thread_local is not MSL",
    "double": "double is not MSL",
}
_FLAGS = [
    "-x", "c++", "-nostdinc", "-isystem", str(INCLUDE), "--target=x86_64-linux-gnu", "-march=x86-64-v3",
    "-Wno-everything", "-Wdouble-promotion", "-Wvla-extension", "-Wc++20-extensions", "-D__METAL_VERSION__=320",
    '-DMSL_KERNEL=static inline __attribute__((annotate("kernel")))',
]  # fmt: skip
_UNIT = "shader.cpp"
_NO_SPACE, _CONSTANT_SPACE, _THREADGROUP_SPACE = 0, 2, 3


@dataclass(frozen=True, order=True)
class Finding:
    """Something that Metal's compiler would refuse, or that the rules for portable shaders forbid."""

    file: str
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.message}"


def lint(source: Source) -> list[Finding]:
    """All findings of a shader and of what it includes, in order."""
    try:
        expanded = expand(source)
        done = translate(expanded, source.name)
    except ShaderError as error:
        return sorted(_findings_of(error))
    return sorted(set(_Linter(source, expanded, done).run()))


def _findings_of(error: ShaderError) -> Iterator[Finding]:
    places = re.findall(r"^(\S+?):(\d+):(?:\d+:)? error: (.*)$", str(error), re.MULTILINE)
    if not places:
        yield Finding("", 0, str(error))
    for file, line, message in places:
        yield Finding(file, int(line), message)


class _Linter:
    def __init__(self, source: Source, expanded: str, done: Translation) -> None:
        self._text = cplusplus_of(expanded, done)
        self._uses_tensors = "MetalPerformancePrimitives.h" in expanded
        tokens = tokenize(self._text, source.name)
        self._words = [t for t in tokens if not t.is_blank]
        self._places = self._map_lines(tokens)
        self._found: list[Finding] = []
        self._calls: dict[str, set[str]] = defaultdict(set)
        self._functions: dict[str, Any] = {}

    @staticmethod
    def _map_lines(tokens: list[Token]) -> list[Token]:
        """For each line of the unit a token of the place that it came from."""
        places = []
        for token in tokens:
            for i in range(token.text.count("\n")):
                places.append(Token("", token.file, token.line + i))
        return [*places, tokens[-1]]

    def run(self) -> list[Finding]:
        # Metal 3 is C++14; whatever is not for tensors must compile there.
        standard = "-std=c++20" if self._uses_tensors else "-std=c++14"
        unit = ci.Index.create().parse(_UNIT, [*_FLAGS, standard], unsaved_files=[(_UNIT, self._text)])
        for diagnostic in unit.diagnostics:
            file = diagnostic.location.file
            if diagnostic.severity >= ci.Diagnostic.Error or (file and file.name == _UNIT):
                self._add(diagnostic.location, diagnostic.spelling)
        for token in self._words:
            if token.text in _BANNED_WORDS:
                self._found.append(Finding(token.file, token.line, _BANNED_WORDS[token.text]))
        for cursor in unit.cursor.get_children():
            if cursor.location.file and cursor.location.file.name == _UNIT:
                self._walk(cursor, None, False)
        self._check_recursion()
        return self._found

    def _add(self, location: Any, message: str) -> None:
        line = location.line if location.file and location.file.name == _UNIT else 1
        place = self._places[min(line, len(self._places)) - 1]
        self._found.append(Finding(place.file, place.line, message))

    def _walk(self, cursor: Any, function: str | None, in_kernel: bool) -> None:
        kind = cursor.kind
        if kind in _BANNED:
            self._add(cursor.location, f"{_BANNED[kind]} is not MSL")
        if kind in _FUNCTIONS:
            function = cursor.get_usr()
            self._functions[function] = cursor
            in_kernel = any(c.kind == _KIND.ANNOTATE_ATTR and c.spelling == "kernel" for c in cursor.get_children())
        elif kind == _KIND.CALL_EXPR and function and cursor.referenced is not None:
            self._calls[function].add(cursor.referenced.get_usr())
        elif kind in (_KIND.PARM_DECL, _KIND.VAR_DECL, _KIND.FIELD_DECL):
            self._check_variable(cursor, function, in_kernel)
        elif kind in (_KIND.BINARY_OPERATOR, _KIND.COMPOUND_ASSIGNMENT_OPERATOR):
            self._check_arithmetic(cursor)
        elif kind == _KIND.UNEXPOSED_EXPR:
            self._check_conversion(cursor)
        elif kind == _KIND.FLOATING_LITERAL:
            text = self._slice(cursor.extent.start.offset, cursor.extent.end.offset)
            if text and text[-1] not in "fFhH":
                self._add(cursor.location, f"literal {text} needs an f or h: double is not MSL")
        for child in cursor.get_children():
            self._walk(child, function, in_kernel)

    def _slice(self, begin: int, end: int) -> str:
        return self._text.encode()[begin:end].decode() if not self._text.isascii() else self._text[begin:end]

    def _declaration(self, cursor: Any) -> str:
        """The words of a declaration from the last separator on, with those that are empty macros to clang."""
        end = cursor.extent.end.offset
        text = self._slice(0, end)
        begin = max(text.rfind(separator, 0, cursor.extent.start.offset) for separator in "(,;{}<") + 1
        return text[begin:]

    def _check_variable(self, cursor: Any, function: str | None, in_kernel: bool) -> None:
        name, type_ = cursor.spelling, cursor.type
        canonical = type_.get_canonical()
        space = _address_space(type_)
        if _is_indirect(canonical):
            words = set(re.findall(r"\w+", self._declaration(cursor)))
            pointed = canonical.get_pointee()
            plain = _address_space(pointed) == _NO_SPACE and not words & {"thread", "auto", "constant"}
            if plain and not _is_callable(pointed):
                self._add(cursor.location, f"'{name}' points nowhere: write device, constant, threadgroup or thread")
            if _element(pointed).spelling.endswith("(lambda)"):
                return
        if space == _THREADGROUP_SPACE and _kind(_element(canonical)) == ci.TypeKind.RECORD:
            self._add(cursor.location, f"threadgroup variable '{name}' must hold scalars or vectors")
        if cursor.kind != _KIND.VAR_DECL:
            return
        if function is None and space != _CONSTANT_SPACE:
            self._add(cursor.location, f"'{name}' at program scope must be constant")
        if function and cursor.storage_class == ci.StorageClass.STATIC and space != _THREADGROUP_SPACE:
            self._add(cursor.location, f"static local '{name}' is not MSL")

    def _check_arithmetic(self, cursor: Any) -> None:
        operands = list(cursor.get_children())
        if len(operands) != 2 or not _is_bfloat(cursor.type):
            return
        between = self._slice(operands[0].extent.end.offset, operands[1].extent.start.offset).strip()
        if between not in ("=", ","):
            self._add(cursor.location, "arithmetic in bfloat: convert to float first")

    def _check_conversion(self, cursor: Any) -> None:
        """Implicit casts are unexposed expressions around what they cast."""
        children = list(cursor.get_children())
        if len(children) == 1 and _is_bfloat(cursor.type):
            from_ = _element(children[0].type.get_canonical())
            if _kind(from_) in (ci.TypeKind.FLOAT, ci.TypeKind.DOUBLE, ci.TypeKind.INT, ci.TypeKind.UINT):
                self._add(cursor.location, f"implicit {from_.spelling} to bfloat: write bfloat(...)")

    def _check_recursion(self) -> None:
        for function, cursor in self._functions.items():
            seen: set[str] = set()
            ahead = [function]
            while ahead:
                for callee in self._calls.get(ahead.pop(), ()):
                    if callee == function:
                        self._add(cursor.location, f"'{cursor.spelling}' calls itself: recursion is not MSL")
                        ahead = []
                        break
                    if callee not in seen:
                        seen.add(callee)
                        ahead.append(callee)


def _address_space(type_: Any) -> int:
    """Of a variable; of its elements when it is an array."""
    read = ci.conf.lib.clang_getAddressSpace
    return max(read(type_), read(type_.get_canonical()), read(_element(type_.get_canonical())))


def _kind(type_: Any) -> Any:
    try:
        return type_.kind
    except ValueError:  # a kind that libclang's Python side has no name for, such as _Float16
        return None


def _is_indirect(type_: Any) -> bool:
    return _kind(type_) in (ci.TypeKind.POINTER, ci.TypeKind.LVALUEREFERENCE, ci.TypeKind.RVALUEREFERENCE)


def _is_callable(type_: Any) -> bool:
    return _kind(type_) == ci.TypeKind.FUNCTIONPROTO


def _element(type_: Any) -> Any:
    """What an array or a vector is made of."""
    kinds = (
        ci.TypeKind.CONSTANTARRAY,
        ci.TypeKind.INCOMPLETEARRAY,
        ci.TypeKind.DEPENDENTSIZEDARRAY,
        ci.TypeKind.VECTOR,
    )
    while _kind(type_) in kinds or (_kind(type_) is None and ci.conf.lib.clang_getNumElements(type_) > 0):
        type_ = ci.conf.lib.clang_getElementType(type_)
    return type_


def _is_bfloat(type_: Any) -> bool:
    return bool(_element(type_.get_canonical()).spelling.split()[-1:] == ["__bf16"])
