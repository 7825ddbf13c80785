#!/usr/bin/env bash
# Compile the native sources for arm64 with Debian's cross compiler (g++-aarch64-linux-gnu), warnings being errors, and run the check
# of the matrix products under emulation (qemu-user-static).
set -euo pipefail
cd "$(dirname "$0")/.."

compiler=aarch64-linux-gnu-g++
for command in "$compiler" qemu-aarch64-static; do
    if ! command -v "$command" >/dev/null; then
        echo "$command is missing: apt-get install g++-aarch64-linux-gnu qemu-user-static" >&2
        exit 1
    fi
done
objects=$(mktemp -d)
trap 'rm -rf "$objects"' EXIT
flags="-std=c++20 -O2 -fPIC -ffp-contract=fast -fno-math-errno -fno-trapping-math -Wall -Wextra -Werror -Wno-psabi"
find src/lily_core -name '*.cpp' -not -path '*/bindings/*' -print0 |
    xargs -0 -P "$(nproc)" -I '{}' sh -c "$compiler $flags -DLILY_ISA=baseline -Isrc/lily_core -Ishaders -c '{}' -o \"\$(mktemp -p $objects)\""
echo "arm64: $(find "$objects" -type f | wc -l) files compiled"
$compiler $flags -static -DLILY_ISA=baseline -Isrc/lily_core -Ishaders tests/native/products.cpp \
    src/lily_core/device/cpu/kernels/{gemm,matvec}.cpp -o "$objects/products"
qemu-aarch64-static "$objects/products"
