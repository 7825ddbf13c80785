#include "device/contract.h"

#include <algorithm>
#include <iterator>

#include "lily_args.h"

namespace lily {
namespace {

constexpr std::uint32_t kRows = sizeof(RowsArgs), kLayer = sizeof(LayerArgs);

constexpr Contract kContracts[] = {
    // In both programs, with a form for each.
    {"embed", false, "rrrrrw", kRows},
    {"embed", true, "rrrrw", kRows},
    {"gdn_in", false, "rrrrrwww", kRows},
    {"gdn_in", true, "rrrrwww", kRows},
    {"gdn_out", false, "rrrrrrb", kRows},
    {"gdn_out", true, "rrrrb", kRows},
    {"attn_in", false, "rrrrrwwww", kRows},
    {"attn_in", true, "rrrrwwww", kRows},
    {"attn_prep", false, "rbrrrrrrb", kLayer},
    {"attn_prep", true, "rbrrrrrrb", kLayer},
    {"attn_out", false, "rrrrb", kRows},
    {"attn_out", true, "rrrrb", kRows},
    {"router", false, "rrrrrww", kRows},
    {"router", true, "rrrrww", kRows},
    {"shared_up", false, "rrrrrrrrw", kRows},
    {"shared_up", true, "rrrrrrrw", kRows},
    {"experts_up", false, "rrrrrrrrrrwwwb", kRows},
    {"experts_up", true, "rrrrrrrrrrwb", kRows},
    {"experts_down", false, "rrrrrrrrrrrrb", kRows},
    {"experts_down", true, "rrrrrrrw", kRows},
    {"lm_head", false, "rrrrrrbb", kRows},
    {"sample_scan", false, "rrrrrrww", kRows},
    {"sample_pick", false, "rrrrrbbw", kRows},
    // In the step program only.
    {"gdn_step", false, "rrrrrrbbw", kLayer},
    {"attn_split", false, "rrrrw", sizeof(AttnSplitArgs)},
    {"attn_combine", false, "rrw", sizeof(AttnCombineArgs)},
    // In the prefill program only.
    {"rms_norm", false, "rrw", kRows},
    {"gdn_conv", false, "rrrrrrbwwwww", kLayer},
    {"gdn_chunk", false, "rrrrrwww", kRows},
    {"gdn_scan", false, "rrrrrrrbw", kLayer},
    {"gated_norm", false, "rrrw", kRows},
    {"attn_prefill", false, "rrrrrbw", sizeof(AttnPrefillArgs)},
    {"shared_down", true, "rrrrw", kRows},
    {"topk", false, "rww", kRows},
    {"moe_plan", false, "rww", kRows},
    {"moe_combine", false, "rrrrb", kRows},
};

// Takes the last word of `name`, without its underscore.
std::string_view take_last_word(std::string_view& name) {
  const std::size_t underscore = name.rfind('_');
  if (underscore == std::string_view::npos) return {};
  const std::string_view word = name.substr(underscore + 1);
  name.remove_suffix(word.size() + 1);
  return word;
}

bool is_format(std::string_view word) { return word.size() > 1 && word[0] == 'q' && word[1] >= '0' && word[1] <= '9'; }

}  // namespace

KernelName::KernelName(std::string_view name) : op(name) {
  activation = take_last_word(op);
  is_tile = activation == "tile";
  if (is_tile) activation = take_last_word(op);
  for (std::string_view rest = op; is_format(take_last_word(rest)); op = rest)
    formats.insert(formats.begin(), op.substr(rest.size() + 1));
}

const Contract* find_contract(std::string_view kernel_name) {
  const KernelName name(kernel_name);
  const auto* found = std::ranges::find_if(
      kContracts, [&](const Contract& contract) { return contract.op == name.op && contract.is_tile == name.is_tile; });
  return found == std::end(kContracts) ? nullptr : found;
}

std::vector<Access> accesses_of(const Contract& contract) {
  std::vector<Access> accesses;
  for (const char letter : contract.access)
    accesses.push_back(letter == 'r' ? Access::kRead : letter == 'w' ? Access::kWrite : Access::kReadWrite);
  return accesses;
}

}  // namespace lily
