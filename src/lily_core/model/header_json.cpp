#include "model/header_json.h"

#include <algorithm>
#include <limits>
#include <unordered_set>

#include "error.h"

namespace lily {
namespace {

constexpr int kMaxDepth = 32;  // of values that are skipped; recursion must not follow the file

// Bytes of the UTF-8 sequence at the start of `text`, 0 when it is not one (overlong, surrogate, too large, cut off).
std::size_t utf8_length(std::string_view text) {
  auto byte = [&](std::size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
  auto tail = [&](std::size_t i) { return (byte(i) & 0xc0u) == 0x80u; };
  const unsigned first = byte(0), second = byte(1);
  if (first < 0x80) return 1;
  if (first >= 0xc2 && first <= 0xdf) return tail(1) ? 2 : 0;
  if (first >= 0xe0 && first <= 0xef) {
    if ((first == 0xe0 && second < 0xa0) || (first == 0xed && second > 0x9f)) return 0;
    return tail(1) && tail(2) ? 3 : 0;
  }
  if (first >= 0xf0 && first <= 0xf4) {
    if ((first == 0xf0 && second < 0x90) || (first == 0xf4 && second > 0x8f)) return 0;
    return tail(1) && tail(2) && tail(3) ? 4 : 0;
  }
  return 0;
}

void append_utf8(std::string& out, std::uint32_t code) {
  auto put = [&](std::uint32_t byte) { out += static_cast<char>(byte); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xc0 | code >> 6), put(0x80 | (code & 0x3f));
  } else if (code < 0x10000) {
    put(0xe0 | code >> 12), put(0x80 | (code >> 6 & 0x3f)), put(0x80 | (code & 0x3f));
  } else {
    put(0xf0 | code >> 18), put(0x80 | (code >> 12 & 0x3f)), put(0x80 | (code >> 6 & 0x3f)), put(0x80 | (code & 0x3f));
  }
}

// Reads one JSON text from front to back; the caller says what must come next.
class JsonReader {
 public:
  JsonReader(std::string_view text, const std::string& path) : text_(text), path_(path) {}

  [[noreturn]] void fail(const std::string& problem) const {
    throw CheckpointError(problem + " at byte " + std::to_string(at_) + " of the JSON text", {.path = path_});
  }

  bool accept(char wanted) {
    skip_space();
    if (at_ == text_.size() || text_[at_] != wanted) return false;
    ++at_;
    return true;
  }

  void expect(char wanted) {
    if (!accept(wanted)) fail(std::string("'") + wanted + "' is missing");
  }

  void expect_end() {
    skip_space();
    if (at_ != text_.size()) fail("text after the end");
  }

  // Calls member(key) with the reader at the value of each member. A key that comes twice is refused.
  template <typename Member>
  void object(Member member) {
    expect('{');
    if (accept('}')) return;
    std::unordered_set<std::string> keys;
    do {
      std::string key = string();
      expect(':');
      if (!keys.insert(key).second) fail("key \"" + key + "\" comes twice");
      member(std::move(key));
    } while (accept(','));
    expect('}');
  }

  // Calls element() with the reader at each element.
  template <typename Element>
  void array(Element element) {
    expect('[');
    if (accept(']')) return;
    do element();
    while (accept(','));
    expect(']');
  }

  std::string string() {
    expect('"');
    std::string out;
    while (true) {
      if (at_ == text_.size()) fail("a string does not end");
      const char c = text_[at_];
      if (c == '"') break;
      if (static_cast<unsigned char>(c) < 0x20) fail("a control character inside a string");
      if (c == '\\') {
        ++at_;
        escape(out);
      } else {
        const std::size_t length = utf8_length(text_.substr(at_));
        if (length == 0) fail("invalid UTF-8");
        out += text_.substr(at_, length);
        at_ += length;
      }
    }
    ++at_;
    return out;
  }

  // A whole number without sign, fraction or exponent.
  std::uint64_t unsigned_integer() {
    skip_space();
    const std::size_t begin = at_;
    std::uint64_t value = 0;
    for (; digit(); ++at_) {
      const std::uint64_t next = static_cast<std::uint64_t>(text_[at_] - '0');
      if (value > (std::numeric_limits<std::uint64_t>::max() - next) / 10) fail("a number above 2^64 - 1");
      value = value * 10 + next;
    }
    if (at_ == begin) fail("a whole number >= 0 is missing");
    if (text_[begin] == '0' && at_ - begin > 1) fail("a number with a leading zero");
    if (at_ < text_.size() && (text_[at_] == '.' || text_[at_] == 'e' || text_[at_] == 'E')) fail("a number that is not whole");
    return value;
  }

  void skip_value(int depth = 0) {
    if (depth == kMaxDepth) fail("values nested deeper than " + std::to_string(kMaxDepth));
    skip_space();
    const char c = at_ < text_.size() ? text_[at_] : '\0';
    if (c == '{') {
      object([&](const std::string&) { skip_value(depth + 1); });
    } else if (c == '[') {
      array([&] { skip_value(depth + 1); });
    } else if (c == '"') {
      string();
    } else if (c == '-' || (c >= '0' && c <= '9')) {
      skip_number();
    } else {
      for (std::string_view word : {"true", "false", "null"})
        if (text_.substr(at_, word.size()) == word) {
          at_ += word.size();
          return;
        }
      fail("a value is missing");
    }
  }

 private:
  bool digit() const { return at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9'; }

  void skip_space() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t' || text_[at_] == '\r')) ++at_;
  }

  void skip_number() {
    auto digits = [&] {
      if (!digit()) fail("a digit is missing");
      while (digit()) ++at_;
    };
    auto next_is = [&](std::string_view set) { return at_ < text_.size() && set.find(text_[at_]) != set.npos; };
    if (next_is("-")) ++at_;
    const bool zero = next_is("0");
    const std::size_t begin = at_;
    digits();
    if (zero && at_ - begin > 1) fail("a number with a leading zero");
    if (next_is(".")) ++at_, digits();
    if (next_is("eE")) {
      ++at_;
      if (next_is("+-")) ++at_;
      digits();
    }
  }

  std::uint32_t hex4() {
    std::uint32_t code = 0;
    for (int i = 0; i < 4; ++i, ++at_) {
      static constexpr std::string_view kDigits = "0123456789abcdef";
      char c = at_ < text_.size() ? text_[at_] : '\0';
      if (c >= 'A' && c <= 'F') c = static_cast<char>(c - 'A' + 'a');
      const std::size_t value = kDigits.find(c);
      if (value == kDigits.npos) fail("a \\u escape without four hexadecimal digits");
      code = code * 16 + static_cast<std::uint32_t>(value);
    }
    return code;
  }

  // The character behind a backslash.
  void escape(std::string& out) {
    static constexpr std::string_view kNames = "\"\\/bfnrt", kValues = "\"\\/\b\f\n\r\t";
    const char c = at_ < text_.size() ? text_[at_] : '\0';
    ++at_;
    if (const std::size_t i = kNames.find(c); i != kNames.npos && c != '\0') {
      out += kValues[i];
      return;
    }
    if (c != 'u') fail("an unknown escape");
    std::uint32_t code = hex4();
    if (code >= 0xdc00 && code <= 0xdfff) fail("half of a surrogate pair");
    if (code >= 0xd800 && code <= 0xdbff) {
      if (text_.substr(at_, 2) != "\\u") fail("half of a surrogate pair");
      at_ += 2;
      const std::uint32_t low = hex4();
      if (low < 0xdc00 || low > 0xdfff) fail("half of a surrogate pair");
      code = 0x10000 + ((code - 0xd800) << 10 | (low - 0xdc00));
    }
    append_utf8(out, code);
  }

  std::string_view text_;
  const std::string& path_;
  std::size_t at_ = 0;
};

HeaderEntry parse_entry(JsonReader& json, std::string name) {
  HeaderEntry entry{.name = std::move(name)};
  std::vector<std::uint64_t> offsets;
  bool has_dtype = false, has_shape = false;
  json.object([&](const std::string& key) {
    if (key == "dtype") {
      entry.dtype = json.string();
      has_dtype = true;
    } else if (key == "shape") {
      json.array([&] { entry.shape.push_back(json.unsigned_integer()); });
      has_shape = true;
    } else if (key == "data_offsets") {
      json.array([&] { offsets.push_back(json.unsigned_integer()); });
    } else {
      json.fail("tensor \"" + entry.name + "\" has the unknown key \"" + key + "\"");
    }
  });
  if (!has_dtype || !has_shape || offsets.size() != 2)
    json.fail("tensor \"" + entry.name + "\" needs dtype, shape and data_offsets [begin, end]; it ends");
  entry.begin = offsets[0];
  entry.end = offsets[1];
  return entry;
}

}  // namespace

std::vector<HeaderEntry> parse_header(std::string_view text, const std::string& path) {
  JsonReader json(text, path);
  std::vector<HeaderEntry> entries;
  json.object([&](std::string key) {
    if (key == "__metadata__")
      json.object([&](const std::string&) { json.string(); });
    else
      entries.push_back(parse_entry(json, std::move(key)));
  });
  json.expect_end();
  return entries;
}

std::unordered_map<std::string, std::string> parse_index(std::string_view text, const std::string& path) {
  JsonReader json(text, path);
  std::unordered_map<std::string, std::string> weight_map;
  bool found = false;
  json.object([&](const std::string& key) {
    if (key != "weight_map") return json.skip_value();
    found = true;
    json.object([&](std::string name) { weight_map.emplace(std::move(name), json.string()); });
  });
  json.expect_end();
  if (!found) throw CheckpointError("the index has no weight_map", {.path = path, .field = "weight_map"});
  return weight_map;
}

}  // namespace lily
