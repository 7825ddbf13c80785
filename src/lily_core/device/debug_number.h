// Debug switches with a number: what the variables of all devices share.
#pragma once

#include <charconv>
#include <cstdint>
#include <optional>
#include <string_view>

namespace lily {

// N, at least 1, of a word that is `name`=N; none of any other word.
inline std::optional<std::uint32_t> debug_number(std::string_view word, std::string_view name) {
  if (!word.starts_with(name) || !word.substr(name.size()).starts_with('=')) return std::nullopt;
  std::uint32_t number = 0;
  const char* end = word.data() + word.size();
  const auto [rest, error] = std::from_chars(word.data() + name.size() + 1, end, number);
  return error == std::errc() && rest == end && number > 0 ? std::optional(number) : std::nullopt;
}

}  // namespace lily
