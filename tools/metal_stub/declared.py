"""What the headers beside this file declare, as clang understands them, in the notation of facts.json."""

import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent

# Of Objective-C types on arm64 macOS, whatever qualifiers surround them.
ENCODINGS = {
    "void": "v", "bool": "B", "double": "d", "long": "q", "unsigned long": "Q", "unsigned int": "I",
    "NSUInteger": "Q", "NSInteger": "q", "BOOL": "B", "uint64_t": "Q",
    "MTLSize": "{?=QQQ}", "NSRange": "{_NSRange=QQ}", "_NSRange": "{_NSRange=QQ}",
}  # fmt: skip


@dataclass
class Declared:
    """Methods by "CLASS SELECTOR", as a signature of types and as an encoding; enumerators by name."""

    signatures: dict[str, str] = field(default_factory=dict)
    encodings: dict[str, str] = field(default_factory=dict)
    values: dict[str, int] = field(default_factory=dict)


def plain(text: str) -> str:
    """A type without qualifiers and blanks: 'id<MTLBuffer>  _Nullable' is 'MTLBuffer*'."""
    text = re.sub(r"\b(const|struct|enum|_Nullable|_Nonnull|_Null_unspecified|__strong|__autoreleasing)\b", "", text)
    text = re.sub(r"\b__unsafe_unretained\b|\s+", "", text)
    text = re.sub(r"NS(Array|Dictionary)<.*>", r"NS\1", text)
    return re.sub(r"\bid<(\w+)>", r"\1*", text)


def is_block(text: str) -> bool:
    return "(^" in text or plain(text).endswith("Handler")


def signature_type(text: str, owner: str) -> str:
    if is_block(text):
        return "block"
    name = plain(text)
    if name in ("id", "instancetype"):
        return f"{owner}*"
    return {"BOOL": "bool", "CFTimeInterval": "double", "NSErrorDomain": "NSString*"}.get(name, name)


def encoding_type(node: dict[str, str], enums: dict[str, str]) -> str:
    text = node.get("desugaredQualType", node["qualType"])
    if is_block(node["qualType"]) or "(^" in text:
        return "@?"
    name = re.sub(
        r"\b(_Nullable|_Nonnull|_Null_unspecified|__strong|__autoreleasing|__unsafe_unretained)\b", "", text
    ).strip()
    name = re.sub(r"\s+", " ", name)
    if name.endswith("*") or name.endswith("]"):
        inner = re.sub(r"\s*(\*|\[\d*\])$", "", name)
        constant = "r" if re.search(r"\bconst\b", inner) else ""
        inner = re.sub(r"\bconst\b", "", inner).strip()
        if inner.endswith("*") or re.match(r"id\b", inner):
            return f"{constant}^@"
        if inner in ("void", "char") or inner in ENCODINGS:
            return f"{constant}*" if inner == "char" else f"{constant}^{ENCODINGS[inner]}"
        return "@"
    if re.match(r"(id\b|instancetype)", name):
        return "@"
    name = re.sub(r"^(enum|struct) ", "", name)
    return ENCODINGS.get(enums.get(name, name), name)


def clang_ast(folder: Path) -> dict[str, Any]:
    spec = importlib.util.find_spec("ziglang")
    assert spec and spec.origin
    command = [
        *(sys.executable, "-m", "ziglang", "clang", "-x", "objective-c++", "-std=c++20", "-fobjc-runtime=macosx-26.0"),
        *("-fobjc-arc", "-fblocks", "-w", "-nostdinc++", "-isystem", str(Path(spec.origin).parent / "lib" / "include")),
        *("-isystem", str(folder), "-Xclang", "-ast-dump=json", "-fsyntax-only", str(folder / "Metal" / "Metal.h")),
    ]
    tree: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return tree


def enum_value(constant: dict[str, Any], previous: int) -> int:
    for expression in constant.get("inner", []):
        if "value" in expression:
            return int(expression["value"])
    return previous + 1


def declared(folder: Path = FOLDER) -> Declared:
    """The declarations of the Metal.h in `folder`; Foundation has no independent source of facts."""
    result = Declared()
    nodes = clang_ast(folder)["inner"]
    # By what each enumeration is stored as.
    enums = {
        node["name"]: node["fixedUnderlyingType"].get("desugaredQualType", node["fixedUnderlyingType"]["qualType"])
        for node in nodes
        if node["kind"] == "EnumDecl" and "name" in node and "fixedUnderlyingType" in node
    }
    for node in nodes:
        inner = node.get("inner", [])
        if node["kind"] == "EnumDecl":
            previous = -1
            for constant in inner:
                if constant["kind"] == "EnumConstantDecl" and constant["name"].startswith("MTL"):
                    previous = enum_value(constant, previous)
                    result.values[constant["name"]] = previous
        if node["kind"] not in ("ObjCProtocolDecl", "ObjCInterfaceDecl") or not node.get("name", "").startswith("MTL"):
            continue
        owner = node["name"]
        for method in inner:
            if method["kind"] != "ObjCMethodDecl":
                continue
            parameters = [part["type"] for part in method.get("inner", []) if part["kind"] == "ParmVarDecl"]
            types = ", ".join(signature_type(type_["qualType"], owner) for type_ in parameters)
            key = f"{owner} {method['name']}"
            result.signatures[key] = f"{signature_type(method['returnType']['qualType'], owner)} ({types})"
            result.encodings[key] = (
                encoding_type(method["returnType"], enums)
                + "@:"
                + "".join(encoding_type(type_, enums) for type_ in parameters)
            )
    return result


def disagreements(stub: Declared, facts: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What the facts say otherwise, or do not know: a line each."""
    found = []
    for key in sorted({*stub.signatures, *facts["methods"]}):
        known = facts["methods"].get(key, {})
        if key not in stub.signatures:
            found.append(f"{key}: the stub no longer declares it")
        elif not known:
            found.append(f"{key}: no source knows it")
        for source, ours in (("metal-cpp", stub.signatures), ("pyobjc", stub.encodings)):
            if source in known and key in ours and known[source] != ours[key]:
                found.append(f"{key}: {ours[key]} here, {known[source]} in {source}")
    for name in sorted({*stub.values, *facts["values"]}):
        if stub.values.get(name) != facts["values"].get(name):
            found.append(f"{name}: {stub.values.get(name)} here, {facts['values'].get(name)} in pyobjc")
    return found
