#!/usr/bin/env bash
# Compile the native sources for arm64 with Debian's cross compiler (g++-aarch64-linux-gnu), warnings being errors, and run the check
# of the matrix products of each instruction set under emulation (qemu-user-static), on a processor that has no more than it needs.
# The kernels are type-checked with clang too: it is the Mac's compiler.
set -euo pipefail
cd "$(dirname "$0")/.."

compiler=aarch64-linux-gnu-g++
for command in "$compiler" qemu-aarch64-static clang++; do
    if ! command -v "$command" >/dev/null; then
        echo "$command is missing: apt-get install g++-aarch64-linux-gnu qemu-user-static clang" >&2
        exit 1
    fi
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
checks="-std=c++20 -Wall -Wextra -Werror -Isrc/lily_core -Ishaders"
compile="$compiler $checks -O2 -fPIC -ffp-contract=fast -fno-math-errno -fno-trapping-math -Wno-psabi"

# The flags of cmake/cpu_kernels.cmake. Of the processors that this qemu knows only "max" has i8mm, and everything else too.
isas="baseline dotprod i8mm"
flags_of() { sed -n "s/^ *set(LILY_CPU_FLAGS_$1 \(-march=armv8.*\))$/\1/p" cmake/cpu_kernels.cmake; }
cpu_of() { case $1 in baseline) echo cortex-a72 ;; dotprod) echo neoverse-n1 ;; i8mm) echo max ;; esac; }

# What depends on the instruction set, for each; everything else once. One line a file: flags, source, object.
for isa in $isas; do
    mkdir "$work/lily_cpu_$isa.dir"
    for source in tests/native/products.cpp src/lily_core/device/cpu/kernels/{gemm,matvec,multiply_loop}.cpp; do
        echo "$(flags_of "$isa") -DLILY_ISA=$isa $source -o $work/lily_cpu_$isa.dir/$(basename "$source").o"
    done
done >"$work/files"
find src/lily_core -name '*.cpp' -not -path '*/bindings/*' -not -name gemm.cpp -not -name matvec.cpp \
    -not -name multiply_loop.cpp | while read -r source; do
    echo "$(flags_of baseline) -DLILY_ISA=baseline $source -o $work/$(basename "$source").o"
done >>"$work/files"
echo tests/native/isas.cpp -o "$work/choice.o" >>"$work/files"
xargs -P "$(nproc)" -I '{}' sh -c "$compile -c {}" <"$work/files"
echo "arm64: $(wc -l <"$work/files") files compiled"

for isa in $isas; do
    # shellcheck disable=SC2046,SC2086  # lists of words
    clang++ --target=aarch64-linux-gnu -fsyntax-only $checks $(flags_of "$isa") -DLILY_ISA="$isa" \
        tests/native/products.cpp src/lily_core/device/cpu/kernels/*.cpp
done

$compiler -static "$work/choice.o" "$work/isas.cpp.o" -o "$work/isas"
expected=""
for isa in $isas; do
    expected="$isa${expected:+ $expected}"
    run="qemu-aarch64-static -cpu $(cpu_of "$isa")"
    found=$($run "$work/isas")
    if [ "$found" != "$expected" ]; then
        echo "instruction sets of $(cpu_of "$isa"): \"$found\", expected \"$expected\"" >&2
        exit 1
    fi
    $compiler -static "$work/lily_cpu_$isa.dir"/*.o "$work/isas.cpp.o" -o "$work/products"
    echo "$isa, on $(cpu_of "$isa"):"
    $run "$work/products" | tee "$work/$isa.log"
    if ! cmp -s <(grep digest "$work/$isa.log") <(grep digest "$work/baseline.log"); then
        echo "the tiles of $isa differ from those of baseline" >&2
        exit 1
    fi
done
