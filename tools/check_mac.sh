#!/usr/bin/env bash
# Type-check the C++ but the bindings, and the Metal device, for the Mac; or the files given instead. At the oldest supported macOS (a
# call that needs Metal 4 without @available is an error), and what is given or uses Metal at the newest too. The CPU's kernels are those
# of an M2. Zig's clang has Darwin's C headers; Foundation and Metal come from tools/metal_stub. Nothing is linked or run.
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-.venv/bin/python}
objects=$(mktemp -d)
trap 'rm -rf "$objects"' EXIT
flags="-std=c++20 -O0 -fobjc-arc -fblocks -Wall -Wextra -Wunguarded-availability -Werror -mcpu=apple_m2 -DLILY_ISA=i8mm"
check() {
    local version=$1
    shift
    printf '%s\n' "$@" |
        xargs -P "$(nproc)" -I '{}' sh -c "$python -m ziglang c++ -target aarch64-macos.$version -x objective-c++ $flags \
            -isystem tools/metal_stub -Isrc/lily_core -Ishaders -c '{}' -o \"\$(mktemp -p $objects)\""
    echo "macOS $version: $(find "$objects" -type f | wc -l) files"
    rm -f "$objects"/*
}
if [ $# -gt 0 ]; then
    check 15.0 "$@"
    check 26.0 "$@"
else
    mapfile -t files < <(find src/lily_core -name '*.mm' -o -name '*.cpp' -not -path '*/bindings/*' | sort)
    mapfile -t metal < <(find src/lily_core/device/metal -name '*.mm' -o -path '*/metal/*.cpp' | sort)
    check 15.0 "${files[@]}"
    check 26.0 "${metal[@]}"
fi
