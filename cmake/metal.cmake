# The Metal device. A Mac's own clang compiles it against the frameworks. With LILY_SOFTMETAL it is compiled for Linux too, with
# Zig's clang (package ziglang), over software Metal (tests/softmetal): for development and tests, never for a wheel.
option(LILY_SOFTMETAL "Build the Metal device over software Metal" OFF)

if(NOT APPLE AND NOT LILY_SOFTMETAL)
  return()
endif()

target_compile_definitions(lily_static PRIVATE LILY_METAL)

file(GLOB LILY_SHADERS CONFIGURE_DEPENDS shaders/*.metal shaders/*.h)
set(embedded_shaders ${CMAKE_CURRENT_BINARY_DIR}/embedded_shaders.cpp)
add_custom_command(
  OUTPUT ${embedded_shaders}
  COMMAND ${CMAKE_COMMAND} -DOUTPUT=${embedded_shaders} -P ${CMAKE_CURRENT_SOURCE_DIR}/cmake/embed_shaders.cmake ${LILY_SHADERS}
  DEPENDS ${LILY_SHADERS} cmake/embed_shaders.cmake
  VERBATIM)
target_sources(lily_static PRIVATE ${embedded_shaders})

file(GLOB LILY_METAL_SOURCES CONFIGURE_DEPENDS src/lily_core/device/metal/*.mm)

if(APPLE)
  enable_language(OBJCXX)
  set_target_properties(lily_static PROPERTIES OBJCXX_STANDARD 20 OBJCXX_STANDARD_REQUIRED ON OBJCXX_VISIBILITY_PRESET hidden)
  set_source_files_properties(${LILY_METAL_SOURCES} PROPERTIES COMPILE_OPTIONS "-fobjc-arc;-Wunguarded-availability")
  target_sources(lily_static PRIVATE ${LILY_METAL_SOURCES})
  # Without CoreGraphics a process has no default Metal device.
  target_link_libraries(lily_static PRIVATE "-framework Metal" "-framework Foundation" "-framework CoreGraphics")
  return()
endif()

file(GLOB LILY_SOFTMETAL_SOURCES CONFIGURE_DEPENDS tests/softmetal/*.mm tests/softmetal/*.cpp)
set(flags --target=${CMAKE_SYSTEM_PROCESSOR}-linux-gnu -std=c++20 -O2 -g -fPIC -fvisibility=hidden -fexceptions -Wall -Wextra
  -isystem ${CMAKE_CURRENT_SOURCE_DIR}/tools/metal_stub
  -I${CMAKE_CURRENT_SOURCE_DIR}/src/lily_core -I${CMAKE_CURRENT_SOURCE_DIR}/shaders -I${CMAKE_CURRENT_SOURCE_DIR}
  # Software Metal compiles shaders by `python -m tools.msl`.
  -DLILY_SOFTMETAL_PYTHON="${Python_EXECUTABLE}" -DLILY_SOFTMETAL_ROOT="${CMAKE_CURRENT_SOURCE_DIR}")
if(LILY_WERROR)
  list(APPEND flags -Werror)
endif()
# One standard library in one module: that of the compiler which builds and links the rest.
list(APPEND flags -nostdinc++)
foreach(folder IN LISTS CMAKE_CXX_IMPLICIT_INCLUDE_DIRECTORIES)
  if(folder MATCHES "c\\+\\+")
    list(APPEND flags -isystem ${folder})
  endif()
endforeach()
execute_process(
  COMMAND ${Python_EXECUTABLE} -c "import os, ziglang; print(os.path.dirname(ziglang.__file__))"
  OUTPUT_VARIABLE zig_folder OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
list(APPEND flags -isystem ${zig_folder}/lib/include)
# Apple's Objective-C ABI, which tests/softmetal implements.
set(objc_flags -x objective-c++ -fobjc-runtime=macosx-26.0 -fblocks -fobjc-exceptions)

# tests/device builds the device again, with faults planted.
list(JOIN flags "\n" flag_lines)
list(JOIN objc_flags "\n" objc_flag_lines)
file(WRITE ${CMAKE_CURRENT_BINARY_DIR}/softmetal/flags.txt "${objc_flag_lines}\n${flag_lines}\n")
file(WRITE ${CMAKE_CURRENT_BINARY_DIR}/softmetal/linker.txt "${CMAKE_CXX_COMPILER}\n")

foreach(source IN LISTS LILY_METAL_SOURCES LILY_SOFTMETAL_SOURCES)
  file(RELATIVE_PATH name ${CMAKE_CURRENT_SOURCE_DIR} ${source})
  set(object ${CMAKE_CURRENT_BINARY_DIR}/softmetal/${name}.o)
  get_filename_component(folder ${object} DIRECTORY)
  file(MAKE_DIRECTORY ${folder})
  set(language_flags "")
  if(source MATCHES "/foundation\\.mm$")  # implements retain and release
    set(language_flags ${objc_flags} -fno-objc-arc)
  elseif(source MATCHES "\\.mm$")
    set(language_flags ${objc_flags} -fobjc-arc)
  endif()
  add_custom_command(
    OUTPUT ${object}
    COMMAND ${Python_EXECUTABLE} -m ziglang clang ${language_flags} ${flags} -MD -MF ${object}.d -c ${source} -o ${object}
    DEPENDS ${source}
    DEPFILE ${object}.d
    COMMENT "Building ${name} over software Metal"
    VERBATIM)
  set_source_files_properties(${object} PROPERTIES EXTERNAL_OBJECT ON GENERATED ON)
  # Objects of a static library that nothing refers to would be left out, and with them their Objective-C classes.
  list(APPEND LILY_SOFTMETAL_OBJECTS ${object})
endforeach()
list(JOIN LILY_SOFTMETAL_OBJECTS "\n" object_lines)
file(WRITE ${CMAKE_CURRENT_BINARY_DIR}/softmetal/objects.txt "${object_lines}\n")
