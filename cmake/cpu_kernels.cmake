# Every CPU kernel is compiled once per instruction set, in a namespace of that name; the device picks one at run time.
# Always optimised, also in debug builds: unoptimised std:: templates built for a newer instruction set
# could be picked by the linker for code that runs everywhere.
file(GLOB LILY_CPU_KERNELS CONFIGURE_DEPENDS src/lily_core/device/cpu/kernels/*.cpp)

if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$")
  set(LILY_CPU_ISAS baseline avx2 avx512 avx512_pairs amx)
  set(LILY_CPU_FLAGS_baseline -march=x86-64)
  set(LILY_CPU_FLAGS_avx2 -march=x86-64-v3)
  set(LILY_CPU_FLAGS_avx512 -march=x86-64-v4 -mavx512vnni -mprefer-vector-width=512)
  set(LILY_CPU_FLAGS_avx512_pairs -march=x86-64-v4 -mavx512vnni -mprefer-vector-width=512 -DLILY_PAIRS)
  set(LILY_CPU_FLAGS_amx -march=x86-64-v4 -mavx512vnni -mprefer-vector-width=512 -mamx-tile -mamx-int8 -DLILY_AMX)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$")
  set(LILY_CPU_ISAS baseline dotprod i8mm)
  set(LILY_CPU_FLAGS_baseline -march=armv8-a)
  set(LILY_CPU_FLAGS_dotprod -march=armv8.2-a+dotprod)
  set(LILY_CPU_FLAGS_i8mm -march=armv8.2-a+dotprod+i8mm)
else()
  set(LILY_CPU_ISAS baseline)
  set(LILY_CPU_FLAGS_baseline "")
endif()

set(LILY_CPU_KERNEL_LIBRARIES "")
foreach(isa IN LISTS LILY_CPU_ISAS)
  add_library(lily_cpu_${isa} OBJECT ${LILY_CPU_KERNELS})
  target_include_directories(lily_cpu_${isa} PRIVATE src/lily_core shaders)
  target_compile_definitions(lily_cpu_${isa} PRIVATE LILY_ISA=${isa})
  target_compile_options(lily_cpu_${isa} PRIVATE -O3 -ffp-contract=fast -fno-math-errno -fno-trapping-math
    ${LILY_WARNINGS} -Wno-psabi ${LILY_CPU_FLAGS_${isa}}
    # g++ 12 finds uninitialised variables in its own AVX-512 header.
    $<$<CXX_COMPILER_ID:GNU>:-Wno-uninitialized>
    $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
  list(APPEND LILY_CPU_KERNEL_LIBRARIES lily_cpu_${isa})
endforeach()
