"""Launch entries: what a runtime calls to run a kernel, written behind the translated shader."""

from collections.abc import Iterable

from .translate import INDICES, POSITIONS, Kernel, Parameter

_CPU_VALUES = {
    "thread_position_in_grid": "msl_in_grid(call->group, call->self)",
    "thread_position_in_threadgroup": "call->self->position",
    "threadgroup_position_in_grid": "call->group->position",
    "threads_per_threadgroup": "call->group->size",
    "threadgroups_per_grid": "call->group->groups",
    "threads_per_grid": "msl_grid(call->group)",
    "thread_index_in_threadgroup": "call->self->index",
    "thread_index_in_simdgroup": "call->self->lane",
    "simdgroup_index_in_threadgroup": "call->self->simdgroup",
    "simdgroups_per_threadgroup": "call->group->simdgroups",
    "threads_per_simdgroup": "32",
}
_PTX_VALUES = {
    "thread_position_in_grid": "MSL_IN_GRID(x), MSL_IN_GRID(y), MSL_IN_GRID(z)",
    "thread_position_in_threadgroup": "MSL_SREG(tid)",
    "threadgroup_position_in_grid": "MSL_SREG(ctaid)",
    "threads_per_threadgroup": "MSL_SREG(ntid)",
    "threadgroups_per_grid": "MSL_SREG(nctaid)",
    "threads_per_grid": "MSL_GRID(x), MSL_GRID(y), MSL_GRID(z)",
    "thread_index_in_threadgroup": "msl_index()",
    "thread_index_in_simdgroup": "msl_index() % 32",
    "simdgroup_index_in_threadgroup": "msl_index() / 32",
    "simdgroups_per_threadgroup": "(msl_threads() + 31) / 32",
    "threads_per_simdgroup": "32",
}
assert set(_CPU_VALUES) == set(_PTX_VALUES) == {*POSITIONS, *INDICES}


def _value(parameter: Parameter, values: dict[str, str]) -> str:
    value = values[parameter.attribute]
    if parameter.attribute in POSITIONS:
        return f"msl_position<{parameter.type.replace('const ', '')}>({value})"
    return f"({parameter.type})({value})"


def _dereferenced(parameter: Parameter, pointer: str) -> str:
    """`pointer`, a void*, as the parameter's type."""
    if "&" in parameter.type:
        return f"*({parameter.type.replace('&', '*')}){pointer}"
    return f"({parameter.type}){pointer}"


def cpu_entries(kernels: Iterable[Kernel]) -> str:
    """A function msl_entry_NAME(const msl_call*) for every kernel, and the table `msl_exports` of them."""
    lines = ['#line 1 "entries"', '#include "msl/entry_cpu.h"']
    rows = []
    for kernel in kernels:
        arguments = []
        for p in kernel.parameters:
            if p.is_buffer:
                arguments.append(_dereferenced(p, f"call->buffers[{p.index}]"))
            else:
                arguments.append(_value(p, _CPU_VALUES))
        lines.append(
            f"static void msl_entry_{kernel.name}(const msl_call* call) {{ {kernel.name}({', '.join(arguments)}); }}"
        )
        begin = end = "nullptr"
        if kernel.has_threadgroup_variables:
            begin, end = f"__start_msl_{kernel.name}", f"__stop_msl_{kernel.name}"
            lines.append(f'extern "C" char {begin}[] __attribute__((visibility("hidden"), weak));')
            lines.append(f'extern "C" char {end}[] __attribute__((visibility("hidden"), weak));')
        masks = ", ".join(f"{kernel.mask(kind):#x}ul" for kind in ("is_buffer", "is_writable"))
        rows.append(f'{{"{kernel.name}", msl_entry_{kernel.name}, {masks}, {begin}, {end}}}')
    lines.append(f"static const msl_kernel msl_kernels[] = {{{', '.join(rows)}}};")
    lines.append(
        'extern "C" __attribute__((visibility("default"))) '
        f"const msl_library msl_exports = {{msl_kernels, {len(rows)}, &msl_host}};"
    )
    return "\n".join(lines) + "\n"


def ptx_entries(kernels: Iterable[Kernel]) -> str:
    """An entry msl_entry_NAME for every kernel; its parameters are the buffers in order, a `constant T&` by value."""
    lines = ['#line 1 "entries"', '#include "msl/entry_ptx.h"']
    for kernel in kernels:
        declared, arguments = {}, []
        for p in kernel.parameters:
            if p.is_buffer and p.type.startswith("constant") and "&" in p.type:
                declared[p.index] = f"{p.type.replace('&', '')} b{p.index}"
                arguments.append(f"b{p.index}")
            elif p.is_buffer:
                declared[p.index] = f"{p.type.replace('&', '*')} b{p.index}"
                arguments.append(("*" if "&" in p.type else "") + f"b{p.index}")
            else:
                arguments.append(_value(p, _PTX_VALUES))
        parameters = ", ".join(declared[i] for i in sorted(declared))
        lines.append(
            f'extern "C" __attribute__((nvptx_kernel)) void msl_entry_{kernel.name}({parameters}) '
            f"{{ {kernel.name}({', '.join(arguments)}); }}"
        )
    return "\n".join(lines) + "\n"
