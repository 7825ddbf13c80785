#include "device/prepare.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include "device/widen.h"
#include "lily_args.h"
#include "model/tensor_source.h"

namespace lily {
namespace {

constexpr std::uint64_t kChunkBytes = 4 << 20;  // read at a time when rows are moved or widened: memory never doubles
constexpr std::uint32_t kNoRow = 0xffffffff;

enum class Component { kCodes, kScales, kBiases };

const TensorSource& source_of(const HostMatrix& part, Component component) {
  return component == Component::kCodes ? *part.codes : component == Component::kScales ? *part.scales : *part.biases;
}

// Bytes of one row of a component, as stored and in the common form.
struct RowBytes {
  std::uint64_t stored;
  std::uint64_t wanted;
};

RowBytes row_bytes(const HostMatrix& part, Component component, const WeightForm& form, std::uint32_t columns) {
  if (component == Component::kCodes) return {std::uint64_t{columns} * part.bits / 8, std::uint64_t{columns} * form.bits / 8};
  const std::uint64_t groups = columns / LILY_GROUP_SIZE;
  return {groups * size_of(source_of(part, component).dtype()), groups * (form.wide_pairs ? 4 : 2)};
}

// Copies one row, widened when the two sizes differ.
void put_row(const HostMatrix& part, Component component, RowBytes bytes, const std::byte* from, std::byte* to) {
  if (component == Component::kCodes && bytes.stored != bytes.wanted) {
    widen_codes(from, to, bytes.stored);
  } else if (component != Component::kCodes && bytes.stored != bytes.wanted) {
    const TensorSource& source = source_of(part, component);
    const std::size_t count = bytes.wanted / sizeof(float);
    widen_floats(source.dtype(), from, reinterpret_cast<float*>(to), count);
  } else {
    std::memcpy(to, from, bytes.stored);
  }
}

// Place of each stored row in the wanted order.
std::vector<std::uint32_t> places_of(const HostMatrix& part) {
  std::vector<std::uint32_t> places(part.rows, kNoRow);
  if (part.row_order.size() != part.rows) throw std::logic_error("row order of " + part.module + " has another length");
  for (std::uint32_t i = 0; i < part.rows; ++i) {
    const std::uint32_t row = part.row_order[i];
    if (row >= part.rows || places[row] != kNoRow) throw std::logic_error("row order of " + part.module + " is no permutation");
    places[row] = i;
  }
  return places;
}

// Reads the rows of one expert of one part to `to`, in the wanted order and form.
void read_rows(const HostMatrix& part, Component component, RowBytes bytes, std::uint32_t expert,
               std::span<const std::uint32_t> places, std::vector<std::byte>& chunk, std::byte* to) {
  const TensorSource& source = source_of(part, component);
  const std::uint64_t begin = std::uint64_t{expert} * part.rows * bytes.stored;
  if (places.empty() && bytes.stored == bytes.wanted) return source.read(to, begin, part.rows * bytes.stored);
  const std::uint32_t rows_a_chunk = static_cast<std::uint32_t>(std::max<std::uint64_t>(1, kChunkBytes / bytes.stored));
  for (std::uint32_t first = 0; first < part.rows; first += rows_a_chunk) {
    const std::uint32_t rows = std::min(rows_a_chunk, part.rows - first);
    chunk.resize(rows * bytes.stored);
    source.read(chunk.data(), begin + first * bytes.stored, chunk.size());
    for (std::uint32_t i = 0; i < rows; ++i) {
      const std::uint64_t place = places.empty() ? first + i : places[first + i];
      put_row(part, component, bytes, chunk.data() + i * bytes.stored, to + place * bytes.wanted);
    }
  }
}

class Preparation {
 public:
  Preparation(const HostWeight& weight, const MapTensor& map, const Allocate& allocate)
      : weight_(weight), map_(map), allocate_(allocate), form_(common_form(weight)) {
    prepared_.format = format_name(form_);
  }

  // Adds codes, scales and biases of `parts`, stacked along the rows.
  void add(std::span<const HostMatrix> parts) {
    for (Component component : {Component::kCodes, Component::kScales, Component::kBiases})
      if (!add_mapped(parts, component)) add_copy(parts, component);
  }

  PreparedWeight take() { return std::move(prepared_); }

 private:
  bool add_mapped(std::span<const HostMatrix> parts, Component component) {
    const HostMatrix& part = parts.front();
    const RowBytes bytes = row_bytes(part, component, form_, weight_.columns);
    if (parts.size() != 1 || !part.row_order.empty() || bytes.stored != bytes.wanted) return false;
    std::unique_ptr<Buffer> buffer = map_(source_of(part, component));
    if (!buffer) return false;
    prepared_.mapped_bytes += buffer->length();
    bind(std::move(buffer));
    return true;
  }

  void add_copy(std::span<const HostMatrix> parts, Component component) {
    std::uint64_t expert_bytes = 0;
    for (const HostMatrix& part : parts) expert_bytes += part.rows * row_bytes(part, component, form_, weight_.columns).wanted;
    static constexpr const char* kNames[] = {".codes", ".scales", ".biases"};
    std::unique_ptr<Buffer> buffer =
        allocate_(weight_.name + kNames[static_cast<int>(component)], expert_bytes * weight_.experts);
    std::byte* const base = static_cast<std::byte*>(buffer->contents());
    std::vector<std::byte> chunk;
    std::uint64_t offset = 0;
    for (const HostMatrix& part : parts) {
      const RowBytes bytes = row_bytes(part, component, form_, weight_.columns);
      const std::vector<std::uint32_t> places = part.row_order.empty() ? std::vector<std::uint32_t>{} : places_of(part);
      for (std::uint32_t expert = 0; expert < weight_.experts; ++expert)
        read_rows(part, component, bytes, expert, places, chunk, base + expert * expert_bytes + offset);
      offset += part.rows * bytes.wanted;
    }
    prepared_.copied_bytes += buffer->length();
    bind(std::move(buffer));
  }

  void bind(std::unique_ptr<Buffer> buffer) {
    prepared_.ranges.push_back({buffer.get(), 0, buffer->length()});
    prepared_.owned.push_back(std::move(buffer));
  }

  const HostWeight& weight_;
  const MapTensor& map_;
  const Allocate& allocate_;
  WeightForm form_;
  PreparedWeight prepared_;
};

}  // namespace

WeightForm common_form(const HostWeight& weight) {
  WeightForm form;
  for (const HostMatrix& part : weight.parts) {
    form.bits = std::max(form.bits, part.bits);
    form.wide_pairs |= part.scales->dtype() != Dtype::kBF16 || part.biases->dtype() != Dtype::kBF16;
  }
  return form;
}

std::string format_name(const WeightForm& form) {
  return std::string(form.bits == 4 ? "q4g64" : "q8g64") + (form.wide_pairs ? "w" : "");
}

PreparedWeight prepare_weight(const HostWeight& weight, const MapTensor& map, const Allocate& allocate) {
  Preparation preparation(weight, map, allocate);
  for (const std::span<const HostMatrix> parts : weight.matrices()) preparation.add(parts);
  return preparation.take();
}

}  // namespace lily
