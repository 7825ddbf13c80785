# cmake -DOUTPUT=shaders.cpp -P embed_shaders.cmake FILE…: the files as string literals, for device/metal/embedded_shaders.h.
set(entries "")
math(EXPR last "${CMAKE_ARGC} - 1")
set(is_file OFF)
foreach(i RANGE 1 ${last})
  if(is_file)
    get_filename_component(name "${CMAKE_ARGV${i}}" NAME)
    file(READ "${CMAKE_ARGV${i}}" text)
    string(APPEND entries "    {\"${name}\", R\"shader(${text})shader\"},\n")
  elseif(CMAKE_ARGV${i} MATCHES "embed_shaders\\.cmake$")
    set(is_file ON)
  endif()
endforeach()
file(WRITE "${OUTPUT}" "#include \"device/metal/embedded_shaders.h\"

namespace lily::metal {
namespace {

constexpr EmbeddedShader kShaders[] = {
${entries}};

}  // namespace

std::span<const EmbeddedShader> embedded_shaders() { return kShaders; }

}  // namespace lily::metal
")
