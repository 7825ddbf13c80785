#!/usr/bin/env bash
# Type-check the Metal device, and what the CPU device asks macOS for, for the Mac, at the oldest supported macOS (a call that needs Metal 4 without @available is an error)
# and at the newest; or the files given instead. Zig's clang has Darwin's C headers; Foundation and Metal come from tools/metal_stub. Nothing is linked or run.
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-.venv/bin/python}
objects=$(mktemp -d)
trap 'rm -rf "$objects"' EXIT
files=("$@")
[ ${#files[@]} -gt 0 ] || mapfile -t files < <(
    find src/lily_core/device/metal -name '*.mm' -o -path '*device/metal/*.cpp' | sort
    printf '%s\n' src/lily_core/device/cpu/{cores,isas}.cpp
)
flags="-std=c++20 -O0 -fobjc-arc -fblocks -Wall -Wextra -Wunguarded-availability -Werror"
for version in 15.0 26.0; do
    printf '%s\n' "${files[@]}" |
        xargs -P "$(nproc)" -I '{}' sh -c "$python -m ziglang c++ -target aarch64-macos.$version -x objective-c++ $flags \
            -isystem tools/metal_stub -Isrc/lily_core -Ishaders -c '{}' -o \"\$(mktemp -p $objects)\""
    echo "macOS $version: $(find "$objects" -type f | wc -l) files"
    rm -f "$objects"/*
done
