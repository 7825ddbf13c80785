#include "device/metal/shader_source.h"

#include <algorithm>
#include <cstdio>
#include <set>
#include <stdexcept>
#include <utility>

#include "device/metal/embedded_shaders.h"

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
  const std::pair<const char*, lily_u32> sizes[] = {
      {"LILY_HIDDEN_SIZE", model.hidden_size},
      {"LILY_VOCAB_SIZE", model.vocab_size},
      {"LILY_NUM_ATTENTION_LAYERS", model.num_attention_layers},
      {"LILY_NUM_LINEAR_LAYERS", model.num_linear_layers},
      {"LILY_NUM_ATTENTION_HEADS", model.num_attention_heads},
      {"LILY_NUM_KEY_VALUE_HEADS", model.num_key_value_heads},
      {"LILY_HEAD_DIM", model.head_dim},
      {"LILY_ROTARY_DIM", model.rotary_dim},
      {"LILY_LINEAR_NUM_KEY_HEADS", model.linear_num_key_heads},
      {"LILY_LINEAR_NUM_VALUE_HEADS", model.linear_num_value_heads},
      {"LILY_LINEAR_KEY_HEAD_DIM", model.linear_key_head_dim},
      {"LILY_LINEAR_VALUE_HEAD_DIM", model.linear_value_head_dim},
      {"LILY_LINEAR_CONV_KERNEL_DIM", model.linear_conv_kernel_dim},
      {"LILY_NUM_EXPERTS", model.num_experts},
      {"LILY_NUM_EXPERTS_PER_TOK", model.num_experts_per_tok},
      {"LILY_MOE_INTERMEDIATE_SIZE", model.moe_intermediate_size},
      {"LILY_SHARED_EXPERT_INTERMEDIATE_SIZE", model.shared_expert_intermediate_size},
      {"LILY_MAX_PAGES", model.max_pages},
      {"LILY_KEY_DIM", model.key_dim()},
      {"LILY_VALUE_DIM", model.value_dim()},
      {"LILY_CONV_CHANNELS", model.conv_channels()},
      {"LILY_SAMPLE_BLOCKS", model.sample_blocks()},
  };
  std::string text;
  for (const auto& [name, value] : sizes) define(text, name, value);
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

std::string shader_source(const KernelName& name, const ModelConstants& model) {
  std::string text = model_macros(model) + format_macros(name);
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
