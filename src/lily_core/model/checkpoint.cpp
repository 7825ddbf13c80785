#include "model/checkpoint.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <system_error>

#include "model/header_json.h"

namespace lily {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kNamesShown = 3;  // of many, in a message

std::string first_names(std::vector<std::string> names) {
  std::sort(names.begin(), names.end());
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), kNamesShown); ++i) text += (i ? ", " : "") + names[i];
  if (names.size() > kNamesShown) text += " and " + std::to_string(names.size() - kNamesShown) + " more";
  return text;
}

// Whether there is something of this name: a link to nothing must be refused by opening it, not passed over.
bool exists(const std::string& path) {
  std::error_code ignored;
  return fs::exists(fs::symlink_status(path, ignored));
}

}  // namespace

std::string convert_command(const std::string& folder) {
  return "mlx_lm.convert --hf-path " + folder + " -q --q-bits 4 --q-group-size 64";
}

Checkpoint::Checkpoint(const std::string& folder) : folder_(folder) {
  const std::string index = folder + "/model.safetensors.index.json";
  if (exists(index))
    open_indexed(index);
  else
    open_all();
  if (std::string mtp = folder + "/mtp.safetensors"; exists(mtp)) mtp_path_ = std::move(mtp);
  refuse_hugging_face_layout();
  skip("vision_tower.");  // kept by some converters; this engine reads text
}

void Checkpoint::open_indexed(const std::string& index_path) {
  const MappedFile file(index_path);
  const auto weight_map = parse_index({reinterpret_cast<const char*>(file.data()), file.size()}, index_path);
  std::set<std::string> names;  // sorted, so that files are opened in their order
  for (const auto& [tensor, name] : weight_map) names.insert(name);
  if (names.empty()) throw CheckpointError("the index names no file", {.path = index_path, .field = "weight_map"});
  for (const std::string& name : names) {
    if (name.empty() || name == "." || name == ".." || name.find('/') != name.npos || name.find('\0') != name.npos)
      throw CheckpointError("the index names a file outside its folder",
                            {.path = index_path, .field = "weight_map", .expected = "a plain file name", .found = name});
    const std::string path = folder_ + "/" + name;
    if (!exists(path))
      throw CheckpointError("a file that the index names is missing", {.path = path,
                                                                       .expected = std::to_string(names.size()) + " files",
                                                                       .fix = "Download the checkpoint again"});
    open_file(path);
  }
  for (const auto& [tensor, name] : weight_map) {
    const auto found = tensors_.find(tensor);
    const std::string expected = folder_ + "/" + name;
    if (found == tensors_.end() || found->second.tensor->path() != expected)
      throw CheckpointError("the tensor is not in the file that the index names",
                            {.path = index_path,
                             .tensor = tensor,
                             .expected = expected,
                             .found = found == tensors_.end() ? "in no file" : found->second.tensor->path()});
  }
  for (const auto& [tensor, entry] : tensors_)
    if (!weight_map.contains(tensor))
      throw CheckpointError("the index does not name this tensor",
                            {.path = entry.tensor->path(), .tensor = tensor, .expected = "an entry in " + index_path});
}

void Checkpoint::open_all() {
  std::vector<std::string> paths;
  std::error_code error;
  for (fs::directory_iterator entry(folder_, error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (name.starts_with("model") && name.ends_with(".safetensors")) paths.push_back(folder_ + "/" + name);
  }
  if (error) throw CheckpointError("cannot read the folder: " + error.message(), {.path = folder_});
  if (paths.empty())
    throw CheckpointError("the folder has no weights",
                          {.path = folder_, .expected = "model.safetensors.index.json or model*.safetensors"});
  std::sort(paths.begin(), paths.end());
  for (const std::string& path : paths) open_file(path);
}

void Checkpoint::open_file(const std::string& path) {
  files_.push_back(std::make_unique<TensorFile>(path));
  for (const TensorSource& tensor : files_.back()->tensors()) {
    const auto [other, is_new] = tensors_.try_emplace(tensor.name(), Entry{&tensor, false});
    if (!is_new)
      throw CheckpointError("the tensor is in two files",
                            {.path = path, .tensor = tensor.name(), .found = "also in " + other->second.tensor->path()});
  }
}

void Checkpoint::refuse_hugging_face_layout() const {
  for (const auto& file : files_)
    for (const TensorSource& tensor : file->tensors()) {
      const std::string& name = tensor.name();
      const bool channels_last = !tensor.shape().empty() && tensor.shape().back() == 1;
      if (name.starts_with("model.language_model.") || name.find(".mlp.experts.") != name.npos ||
          (name.ends_with("conv1d.weight") && !channels_last))
        throw CheckpointError("these weights are in the Hugging Face layout",
                              {.path = file->path(),
                               .tensor = name,
                               .expected = "the MLX layout, quantised",
                               .fix = "Convert them: " + convert_command(folder_)});
    }
}

const TensorSource& Checkpoint::take(const std::string& name, const std::vector<std::uint64_t>& shape,
                                     std::initializer_list<Dtype> dtypes) {
  const auto found = tensors_.find(name);
  if (found == tensors_.end())
    throw CheckpointError("the checkpoint does not have this tensor", {.path = folder_, .tensor = name});
  const TensorSource& tensor = *found->second.tensor;
  if (std::find(dtypes.begin(), dtypes.end(), tensor.dtype()) == dtypes.end()) {
    std::string expected;
    for (Dtype dtype : dtypes) expected += (expected.empty() ? "" : " or ") + std::string(name_of(dtype));
    throw CheckpointError("unsupported dtype", {.path = tensor.path(),
                                                .tensor = name,
                                                .field = "dtype",
                                                .expected = expected,
                                                .found = tensor.dtype_name()});
  }
  if (tensor.shape() != shape)
    throw CheckpointError("the shape does not match config.json", {.path = tensor.path(),
                                                                   .tensor = name,
                                                                   .field = "shape",
                                                                   .expected = shape_text(shape),
                                                                   .found = shape_text(tensor.shape())});
  found->second.used = true;
  return tensor;
}

void Checkpoint::skip(std::string_view prefix) {
  for (auto& [name, entry] : tensors_)
    if (name.starts_with(prefix) && !entry.used) {
      entry.used = true;
      skipped_bytes_ += entry.tensor->length();
    }
}

void Checkpoint::finish() const {
  for (const auto& file : files_) file->file().require_unchanged();
  std::vector<std::string> names;
  for (const auto& [name, entry] : tensors_)
    if (!entry.used) names.push_back(name);
  if (names.empty()) return;
  const std::string count = std::to_string(names.size()) + (names.size() == 1 ? " tensor is" : " tensors are");
  const std::string first = *std::min_element(names.begin(), names.end());
  throw CheckpointError(count + " not part of the model: " + first_names(std::move(names)),
                        {.path = folder_, .tensor = first, .expected = "only the tensors of the model in config.json"});
}

void Checkpoint::require_unchanged() const {
  for (const auto& file : files_)
    if (file->is_lent()) file->file().require_unchanged();
}

std::uint64_t Checkpoint::remaining_bytes() const {
  std::uint64_t total = 0;
  for (const auto& [name, entry] : tensors_)
    if (!entry.used) total += entry.tensor->length();
  return total;
}

std::uint64_t Checkpoint::held_bytes() const {
  std::uint64_t total = 0;
  for (const auto& [name, entry] : tensors_) {
    if (entry.used) continue;
    // Vectors are widened to f32; codes and their pairs are not, as a rule.
    const TensorSource& tensor = *entry.tensor;
    const bool kept = tensor.dtype() == Dtype::kU32 || tensor.dtype() == Dtype::kOther || name.ends_with(".scales") ||
                      name.ends_with(".biases");
    total += kept ? tensor.length() : tensor.length() / size_of(tensor.dtype()) * 4;
  }
  return total;
}

}  // namespace lily
