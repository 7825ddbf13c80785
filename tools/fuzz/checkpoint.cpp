// Fuzz target: a folder of a shard index and two safetensors files. The input is their texts behind each other; its first four
// bytes are the lengths of index and first file, little-endian. Without an index all files of the folder are the checkpoint.
#include <algorithm>

#include "error.h"
#include "folder.h"
#include "model/checkpoint.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const lily::fuzz::Folder folder;
  static const std::string kIndex = "model.safetensors.index.json";
  if (size < 4) return 0;
  std::size_t lengths[] = {data[0] + std::size_t{256} * data[1], data[2] + std::size_t{256} * data[3], size};
  const std::uint8_t* at = data + 4;
  size -= 4;
  for (std::size_t& length : lengths) size -= length = std::min(length, size);

  if (lengths[0])
    folder.write(kIndex, at, lengths[0]);
  else
    folder.remove(kIndex);
  folder.write("model-1.safetensors", at += lengths[0], lengths[1]);
  folder.write("model-2.safetensors", at += lengths[1], lengths[2]);
  try {
    lily::Checkpoint checkpoint(folder.path());
    checkpoint.skip("s");
    for (const char* name : {"a", "b"})
      if (checkpoint.contains(name)) checkpoint.take(name, {2}, {lily::Dtype::kU32, lily::Dtype::kBF16});
    if (checkpoint.held_bytes() < checkpoint.remaining_bytes() / 2) std::abort();
    checkpoint.finish();
  } catch (const lily::CheckpointError& error) {
    if (!error.path.starts_with(folder.path())) std::abort();
  }
  return 0;
}
