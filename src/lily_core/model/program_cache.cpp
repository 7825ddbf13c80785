#include "model/program_cache.h"

#include <algorithm>
#include <utility>

namespace lily {
namespace {

constexpr std::size_t kMaxPrograms = 24;
enum Kind : std::uint32_t { kDecode, kPrefill };

}  // namespace

CachedProgram& ProgramCache::decode(std::uint32_t rows, std::uint32_t context, bool masks_follow) {
  const std::uint32_t bucket = step_bucket(context);
  return get({kDecode, rows, bucket, masks_follow},
             [&] { return decode_program(device_, model_, rows, bucket, masks_follow); });
}

CachedProgram& ProgramCache::prefill(std::uint32_t rows, bool wants_logits) {
  return get({kPrefill, rows, wants_logits}, [&] { return prefill_program(device_, model_, rows, wants_logits); });
}

CachedProgram& ProgramCache::get(const Key& key, const std::function<Program()>& record) {
  const auto found = std::ranges::find(entries_, key, &std::pair<Key, CachedProgram>::first);
  if (found != entries_.end()) {
    entries_.splice(entries_.begin(), entries_, found);
  } else {
    Program program = record();
    auto executable = device_.compile(program);  // which ends the last segment: then its levels count
    entries_.emplace_front(key, CachedProgram{std::move(executable), {program.num_dispatches(), program.num_levels()}});
    if (entries_.size() > kMaxPrograms) entries_.pop_back();
  }
  return entries_.front().second;
}

}  // namespace lily
