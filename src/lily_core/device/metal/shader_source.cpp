#include "device/metal/shader_source.h"

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <set>
#include <stdexcept>

#include "device/metal/embedded_shaders.h"
#include "device/model_sizes.h"

namespace lily::metal {
namespace {

const EmbeddedShader* find_file(std::string_view name) {
  const auto files = embedded_shaders();
  const auto found = std::ranges::find(files, name, &EmbeddedShader::name);
  return found == files.end() ? nullptr : &*found;
}

std::string file_name(std::string_view op) { return std::string(op) + ".metal"; }

void define(std::string& text, const std::string& name, const std::string& value) {
  text += "#define " + name + " " + value + "\n";
}

void define(std::string& text, const std::string& name, lily_u32 value) { define(text, name, std::to_string(value) + "u"); }

std::string model_macros(const ModelConstants& model) {
  std::string text;
  const auto add = [&](std::string name, lily_u32 value) {
    std::ranges::transform(name, name.begin(), [](unsigned char letter) { return std::toupper(letter); });
    define(text, "LILY_" + name, value);
  };
  for (const auto& [name, field] : kModelSizes) add(name, model.*field);
  add("key_dim", model.key_dim());
  add("value_dim", model.value_dim());
  add("conv_channels", model.conv_channels());
  add("sample_blocks", model.sample_blocks());
  char eps[32];
  std::snprintf(eps, sizeof eps, "%.9ef", static_cast<double>(model.rms_norm_eps));
  define(text, "LILY_RMS_NORM_EPS", eps);
  return text;
}

std::string format_macros(const KernelName& name) {
  std::string text;
  const char* const prefixes[] = {"LILY_WEIGHT", "LILY_SECOND"};
  for (std::size_t i = 0; i < name.formats.size(); ++i) {
    const std::string_view format = name.formats[i];  // q4g64, q4g64w, q8g64, q8g64w
    define(text, std::string(prefixes[i]) + "_BITS", format[1] == '4' ? 4 : 8);
    define(text, std::string(prefixes[i]) + "_WIDE", format.back() == 'w' ? 1 : 0);
  }
  return text;
}

// Appends `file`; each #include "…" of an embedded file is replaced by that file, the first time it is met.
void append(std::string& text, const EmbeddedShader& file, std::set<std::string_view>& included) {
  constexpr std::string_view kInclude = "#include \"", kOnce = "#pragma once";
  std::size_t line_number = 0;
  const auto mark = [&](std::size_t number) {
    text += "#line " + std::to_string(number) + " \"" + std::string(file.name) + "\"\n";
  };
  mark(1);
  for (std::size_t begin = 0; begin < file.text.size();) {
    const std::size_t end = std::min(file.text.find('\n', begin), file.text.size());
    const std::string_view line = file.text.substr(begin, end - begin);
    begin = end + 1;
    ++line_number;
    if (line.starts_with(kInclude)) {
      const std::string_view name = line.substr(kInclude.size(), line.find('"', kInclude.size()) - kInclude.size());
      const EmbeddedShader* header = find_file(name);
      if (!header) throw std::logic_error(std::string(file.name) + " includes " + std::string(name) + ", which is not embedded");
      if (included.insert(header->name).second) append(text, *header, included);
      mark(line_number + 1);
    } else {
      text += line.starts_with(kOnce) ? std::string_view() : line;
      text += '\n';
    }
  }
}

}  // namespace

std::string function_name(const KernelName& name) { return std::string(name.op) + (name.is_tile ? "_tile" : ""); }

std::string shader_source(const KernelName& name, const ModelConstants& model, MatrixForm form) {
  std::string text = model_macros(model) + format_macros(name);
  // A step multiplies no matrices with each other.
  const bool has_forms = name.is_tile || name.op == "attn_prefill";
  define(text, "LILY_GEMM_FORM", std::to_string(has_forms ? static_cast<int>(form) : 0));
  std::set<std::string_view> included;
  const EmbeddedShader* file = find_file(file_name(name.op));
  if (!file) throw std::logic_error("there is no shader " + file_name(name.op));
  append(text, *file, included);
  return text;
}

std::uint64_t shaders_digest() {
  std::uint64_t digest = 0xcbf29ce484222325u;  // FNV-1a
  for (const EmbeddedShader& file : embedded_shaders())
    for (const std::string_view text : {file.name, file.text})
      for (const char byte : text) digest = (digest ^ static_cast<unsigned char>(byte)) * 0x100000001b3u;
  return digest;
}

}  // namespace lily::metal
