#!/usr/bin/env bash
# Compile the native sources for arm64 with Debian's cross compiler (g++-aarch64-linux-gnu): warnings are errors, nothing is linked or run.
set -euo pipefail
cd "$(dirname "$0")/.."

compiler=aarch64-linux-gnu-g++
if ! command -v "$compiler" >/dev/null; then
    echo "$compiler is missing: apt-get install g++-aarch64-linux-gnu" >&2
    exit 1
fi
objects=$(mktemp -d)
trap 'rm -rf "$objects"' EXIT
flags="-std=c++20 -O2 -fPIC -ffp-contract=fast -fno-math-errno -fno-trapping-math -Wall -Wextra -Werror -Wno-psabi"
find src/lily_core -name '*.cpp' -not -path '*/bindings/*' -print0 |
    xargs -0 -P "$(nproc)" -I '{}' sh -c "$compiler $flags -DLILY_ISA=baseline -Isrc/lily_core -Ishaders -c '{}' -o \"\$(mktemp -p $objects)\""
echo "arm64: $(find "$objects" -type f | wc -l) files compiled"
