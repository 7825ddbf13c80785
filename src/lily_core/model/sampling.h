// How the next token of a timeline is drawn.
#pragma once

#include <vector>

#include "lily_args.h"

namespace lily {

struct Sampling {
  SampleRow row{};               // without the fields that say where things lie: bias_begin, bias_end, uses_*, token_slot
  std::vector<BiasEntry> bias;   // added to the logits; -infinity forbids a token
};

}  // namespace lily
