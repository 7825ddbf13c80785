#!/bin/sh
# Succeeds when the C++ compiler (CXX, else the system's) takes C++20; else fails with one line that says what to install.
set -u

install="apt-get install g++ (Debian, Ubuntu), xcode-select --install (macOS), or set CXX=/path/to/compiler"
compiler=${CXX:-$(command -v c++ || command -v g++ || command -v clang++ || true)}
if [ -z "$compiler" ]; then
    echo "lily: no C++ compiler found: $install" >&2
    exit 1
fi
if ! printf '#include <span>\n#include <bit>\nint main() { return int(std::popcount(0u)); }\n' |
    $compiler -std=c++20 -fsyntax-only -x c++ - 2>/dev/null; then
    echo "lily: $compiler does not compile C++20 (g++ 12, clang 15 or newer is needed): $install" >&2
    exit 1
fi
