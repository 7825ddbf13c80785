"""Collects facts.json from two sources that know Metal's own headers, for what the stub declares.

usage: python -m tools.metal_stub.collect FOLDER

FOLDER holds two unpacked wheels for macOS from PyPI:
  pip download --no-deps --only-binary=:all: --platform macosx_11_0_universal2 --python-version 313 \\
      pyobjc-framework-Metal==12.2.2
  pip download --no-deps --only-binary=:all: --platform macosx_26_0_arm64 --python-version 312 mlx-metal==0.32.4
PyObjC was compiled against the headers, so its extension holds the encodings of protocols; its table has the values of
enumerators. metal-cpp, which mlx-metal carries, is Apple's C++ interface: it has every selector with its types.
"""

import json
import re
import struct
import sys
from collections import defaultdict
from pathlib import Path

from tools.metal_stub.declared import FOLDER, declared


class MachO:
    """The arm64 part of a Mach-O file: enough to walk the protocols that it holds."""

    def __init__(self, data: bytes) -> None:
        if struct.unpack(">I", data[:4])[0] == 0xCAFEBABE:
            for i in range(struct.unpack(">I", data[4:8])[0]):
                cpu, _, begin, length, _ = struct.unpack(">5I", data[8 + 20 * i : 28 + 20 * i])
                if cpu == 0x0100000C:
                    data = data[begin : begin + length]
                    break
        self.data = data
        self.segments: list[tuple[int, int, int]] = []  # address, length, place in the file
        self.sections: dict[str, tuple[int, int]] = {}
        place = 32
        for _ in range(struct.unpack_from("<I", data, 16)[0]):
            command, size = struct.unpack_from("<II", data, place)
            if command == 0x19:  # LC_SEGMENT_64
                address, length, begin, _ = struct.unpack_from("<4Q", data, place + 24)
                self.segments.append((address, length, begin))
                for k in range(struct.unpack_from("<I", data, place + 64)[0]):
                    section = place + 72 + 80 * k
                    name = data[section : section + 16].rstrip(b"\0").decode()
                    self.sections[name] = struct.unpack_from("<QQ", data, section + 32)
            place += size

    def place(self, address: int) -> int:
        for start, length, begin in self.segments:
            if start <= address < start + length:
                return begin + address - start
        raise KeyError(hex(address))

    def u32(self, address: int) -> int:
        return int(struct.unpack_from("<I", self.data, self.place(address))[0])

    def i32(self, address: int) -> int:
        return int(struct.unpack_from("<i", self.data, self.place(address))[0])

    def pointer(self, address: int) -> int:
        value = int(struct.unpack_from("<Q", self.data, self.place(address))[0])
        return 0 if value >> 63 else value & 0xFFFFFFFFF  # chained fixups; the top bit marks another image

    def text(self, address: int) -> str:
        begin = self.place(address)
        return self.data[begin : self.data.index(b"\0", begin)].decode()

    def methods(self, address: int) -> dict[str, str]:
        """Encodings by selector, without the offsets of the arguments."""
        found: dict[str, str] = {}
        if not address:
            return found
        flags, count = self.u32(address), self.u32(address + 4)
        is_small, size = flags & 0x80000000, flags & 0xFFFC
        for i in range(count):
            entry = address + 8 + size * i
            if is_small:
                name = self.text(self.pointer(entry + self.i32(entry)))
                types = self.text(entry + 4 + self.i32(entry + 4))
            else:
                name, types = self.text(self.pointer(entry)), self.text(self.pointer(entry + 8))
            found[name] = re.sub(r"(?<![A-Za-z_])\d+", "", re.sub(r"(?<=[vBdqQIi@:?}*])\d+", "", types))
        return found

    def protocols(self) -> dict[str, dict[str, str]]:
        address, size = self.sections["__objc_protolist"]
        result = {}
        for i in range(size // 8):
            protocol = self.pointer(address + 8 * i)
            required, optional = self.pointer(protocol + 24), self.pointer(protocol + 40)
            result[self.text(self.pointer(protocol + 8))] = self.methods(required) | self.methods(optional)
        return result


def cpp_type(text: str) -> str:
    if "(^" in text:
        return "block"
    text = re.sub(r"\b(const|class|struct)\b|\s+", "", text)
    text = (
        text.replace("MTL::", "MTL").replace("MTL4::", "MTL4").replace("NS::", "NS").replace("CFTimeInterval", "double")
    )
    return "block" if text.endswith("Handler") else text


def split_arguments(text: str) -> list[str]:
    parts, depth, current = [], 0, ""
    for letter in text:
        depth += (letter in "(<") - (letter in ")>")
        if letter == "," and depth == 0:
            parts.append(current)
            current = ""
        else:
            current += letter
    return [*parts, current] if current.strip() else parts


def cpp_argument(text: str) -> str:
    is_array = text.rstrip().endswith("[]")
    if "(^" in text:
        return "block"
    return cpp_type(re.sub(r"\b\w+(\[\])?\s*$", "", text.strip())) + ("*" if is_array else "")


def metal_cpp_signatures(folder: Path) -> dict[str, set[str]]:
    text = "\n".join(path.read_text() for path in sorted(folder.rglob("metal_cpp/Metal/*.hpp")))
    selectors = {a: s.replace("\\", "") for a, s in re.findall(r'_MTL_PRIVATE_DEF_SEL\((\w+),\s*"([^"]+)"\)', text)}
    found = defaultdict(set)
    pattern = r"_MTL_INLINE\s+([\w:<>\*&\s]+?)\s+(MTL4?)::(\w+)::\w+\(([^{]*?)\)(?:\s*const)?\s*\{(.*?)\n\}"
    for result, space, owner, arguments, body in re.findall(pattern, text, re.S):
        types = ", ".join(cpp_argument(argument) for argument in split_arguments(arguments))
        for accessor in re.findall(r"_MTL_PRIVATE_SEL\((\w+)\)", body):
            if accessor in selectors:
                found[f"{space}{owner} {selectors[accessor]}"].add(f"{cpp_type(result)} ({types})")
    return found


def main() -> int:
    folder = Path(sys.argv[1])
    stub = declared()
    protocols = MachO(next(folder.rglob("Metal/_Metal*.so")).read_bytes()).protocols()
    enums = re.search(r'enums = """(.*?)"""', next(folder.rglob("Metal/_metadata.py")).read_text(), re.S)
    assert enums
    values = dict(entry.rsplit("@", 1) for entry in enums[1].strip("$").split("$") if "@" in entry)
    cpp = metal_cpp_signatures(folder)
    methods: dict[str, dict[str, str]] = {}
    for key in sorted(stub.signatures):
        owner, selector = key.split(" ")
        facts = {}
        if signatures := cpp.get(key):
            # Overloads differ in what the selector takes as a C++ type; ours must be one of them.
            facts["metal-cpp"] = stub.signatures[key] if stub.signatures[key] in signatures else sorted(signatures)[0]
        if encoding := protocols.get(owner, {}).get(selector):
            facts["pyobjc"] = encoding
        if facts:
            methods[key] = facts
    enumerators = {name: int(values[name]) for name in sorted(stub.values) if name in values}
    table = {"methods": methods, "values": enumerators}
    (FOLDER / "facts.json").write_text(json.dumps(table, indent=1, sort_keys=True) + "\n")
    print(f"{len(methods)} methods, {len(enumerators)} values")
    return 0


if __name__ == "__main__":
    sys.exit(main())
