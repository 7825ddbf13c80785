// The files of shaders/, compiled in by cmake/embed_shaders.cmake.
#pragma once

#include <span>
#include <string_view>

namespace lily::metal {

struct EmbeddedShader {
  std::string_view name;  // "gdn_in.metal", "lily_args.h"
  std::string_view text;
};

std::span<const EmbeddedShader> embedded_shaders();

}  // namespace lily::metal
