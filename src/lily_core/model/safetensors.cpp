#include "model/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "error.h"
#include "model/header_json.h"

namespace lily {
namespace {

static_assert(std::endian::native == std::endian::little, "checkpoints are used as they lie in the file: little-endian");

constexpr std::uint64_t kLengthBytes = 8;              // the header's length, in front of it
constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;  // the limit of the safetensors library

struct DtypeRow {
  const char* name;
  std::uint32_t bits;
  Dtype dtype;
};

// Every type of the format, so that tensors which the model skips can be checked too.
constexpr DtypeRow kDtypes[] = {
    {"U32", 32, Dtype::kU32},        {"BF16", 16, Dtype::kBF16},      {"F32", 32, Dtype::kF32},
    {"F16", 16, Dtype::kF16},        {"BOOL", 8, Dtype::kOther},      {"U8", 8, Dtype::kOther},
    {"I8", 8, Dtype::kOther},        {"F8_E5M2", 8, Dtype::kOther},   {"F8_E4M3", 8, Dtype::kOther},
    {"F8_E8M0", 8, Dtype::kOther},   {"I16", 16, Dtype::kOther},      {"U16", 16, Dtype::kOther},
    {"I32", 32, Dtype::kOther},      {"F64", 64, Dtype::kOther},      {"I64", 64, Dtype::kOther},
    {"U64", 64, Dtype::kOther},      {"C64", 64, Dtype::kOther},      {"F4", 4, Dtype::kOther},
    {"F6_E2M3", 6, Dtype::kOther},   {"F6_E3M2", 6, Dtype::kOther},   {"F8_E4M3FNUZ", 8, Dtype::kOther},
    {"F8_E5M2FNUZ", 8, Dtype::kOther},
};

const DtypeRow& dtype_row(const HeaderEntry& entry, const std::string& path) {
  for (const DtypeRow& row : kDtypes)
    if (entry.dtype == row.name) return row;
  throw CheckpointError("unknown dtype", {.path = path, .tensor = entry.name, .field = "dtype", .found = entry.dtype});
}

// Bytes of a tensor of this shape. Throws when they do not fit into 64 bits or are not whole.
std::uint64_t expected_length(const HeaderEntry& entry, std::uint32_t bits, const std::string& path) {
  std::uint64_t total = bits;
  bool overflow = false;
  for (std::uint64_t n : entry.shape) overflow |= __builtin_mul_overflow(total, n, &total);
  if (overflow || total % 8 != 0)
    throw CheckpointError(overflow ? "the shape is too large" : "the shape does not fill whole bytes",
                          {.path = path, .tensor = entry.name, .field = "shape", .found = shape_text(entry.shape)});
  return total / 8;
}

std::string_view header_text(const MappedFile& file, const std::string& path) {
  if (file.size() < kLengthBytes)
    throw CheckpointError("too short for a safetensors file",
                          {.path = path, .expected = "at least 8 bytes", .found = std::to_string(file.size())});
  std::uint64_t length = 0;
  std::memcpy(&length, file.data(), kLengthBytes);
  const std::uint64_t limit = std::min(kMaxHeaderBytes, file.size() - kLengthBytes);
  if (length > limit)
    throw CheckpointError(length > kMaxHeaderBytes ? "the header is too long; this is not a safetensors file"
                                                   : "the file ends inside its header; copy or download it again",
                          {.path = path,
                           .field = "header length",
                           .expected = "at most " + std::to_string(limit) + " bytes",
                           .found = std::to_string(length)});
  return {reinterpret_cast<const char*>(file.data()) + kLengthBytes, length};
}

}  // namespace

TensorFile::TensorFile(std::string path) : path_(std::move(path)), file_(path_) {
  const std::string_view header = header_text(file_, path_);
  std::vector<HeaderEntry> entries = parse_header(header, path_);
  std::sort(entries.begin(), entries.end(), [](const HeaderEntry& a, const HeaderEntry& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
  });

  const std::uint64_t data_begin = kLengthBytes + header.size();
  const std::uint64_t data_length = file_.size() - data_begin;
  std::uint64_t covered = 0;
  tensors_.reserve(entries.size());
  for (HeaderEntry& entry : entries) {
    auto refuse = [&](const char* problem, const std::string& expected) {
      throw CheckpointError(problem, {.path = path_,
                                      .tensor = entry.name,
                                      .field = "data_offsets",
                                      .expected = expected,
                                      .found = shape_text({entry.begin, entry.end})});
    };
    const DtypeRow& row = dtype_row(entry, path_);
    const std::uint64_t length = expected_length(entry, row.bits, path_);
    if (entry.begin > entry.end) refuse("the data ends before it begins", "begin <= end");
    if (entry.end > data_length)
      refuse("the data lies outside the file; copy or download it again", "at most " + std::to_string(data_length));
    if (entry.end - entry.begin != length)
      refuse("the data does not have the length of its shape and dtype",
             std::to_string(length) + " bytes for " + entry.dtype + " " + shape_text(entry.shape));
    if (entry.begin != covered)
      refuse(entry.begin < covered ? "the data overlaps with that of another tensor"
                                   : "bytes in front of the data belong to no tensor",
             "begin " + std::to_string(covered));
    covered = entry.end;
    tensors_.emplace_back(*this, std::move(entry.name), row.dtype, std::move(entry.dtype), std::move(entry.shape),
                          data_begin + entry.begin, length);
  }
  if (covered != data_length)
    throw CheckpointError("the file does not end with its last tensor",
                          {.path = path_,
                           .expected = std::to_string(data_begin + covered) + " bytes",
                           .found = std::to_string(file_.size())});
}

}  // namespace lily
