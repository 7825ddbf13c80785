// Arm of bench/peers for llama.cpp and for forks that kept its interface: the C++ counterpart of bench/peers/measure.py.
//
//   peer MODEL.gguf repacked|mapped TOKENS LOGITS STEPS THREADS CONTEXT...
//
// "repacked" is the layout that the engine computes fastest from, a copy of the weights; "mapped" reads the file where it lies.
// TOKENS is a file of int32 token ids. For each context c the program reads the first c of them and decodes the next STEPS
// one by one, after a warm-up of the same shape. LOGITS gets float32 rows: that after the prompt and those of the steps,
// context after context; "-" writes none. README.md says how to build it.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

#include "llama.h"

namespace {

using Tokens = std::vector<llama_token>;

constexpr int kBatch = 2048;  // tokens in a call; it is split into micro-batches of the engine's default size

struct Timing {
  double prefill_seconds = 0;
  double decode_seconds = 0;
  std::vector<float> logits;  // [1 + steps, vocab_size]
};

// ik_llama.cpp has a flag of its own for it; llama.cpp keeps repacked weights in its extra buffers.
template <class Params>
void set_repacked(Params& params, bool repacked) {
  if constexpr (requires { params.repack_tensors; }) {
    params.repack_tensors = repacked;
  } else {
    params.use_extra_bufts = repacked;
  }
}

bool is_repacked(const std::string& layout) {
  if (layout != "repacked" && layout != "mapped") throw std::runtime_error("the layout is repacked or mapped, not " + layout);
  return layout == "repacked";
}

template <class Context>
void clear(Context* context) {
  if constexpr (requires { llama_kv_cache_clear(context); }) {
    llama_kv_cache_clear(context);
  } else {
    llama_memory_clear(llama_get_memory(context), true);
  }
}

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// Appends `count` tokens at `position`; the logits of the last one can be read afterwards.
void append(llama_context* context, llama_batch& batch, const llama_token* tokens, int count, int position) {
  for (int i = 0; i < count; ++i) {
    batch.token[i] = tokens[i];
    batch.pos[i] = position + i;
    batch.n_seq_id[i] = 1;
    batch.seq_id[i][0] = 0;
    batch.logits[i] = i == count - 1;
  }
  batch.n_tokens = count;
  if (llama_decode(context, batch) != 0) throw std::runtime_error("llama_decode failed");
  llama_synchronize(context);
}

Timing measure(llama_context* context, llama_batch& batch, const Tokens& tokens, int length, int steps, int vocab_size) {
  Timing timing;
  const auto keep_logits = [&] {
    const float* row = llama_get_logits_ith(context, -1);
    if (row == nullptr) throw std::runtime_error("no logits");
    timing.logits.insert(timing.logits.end(), row, row + vocab_size);
  };
  clear(context);
  timing.logits.reserve(static_cast<std::size_t>(steps + 1) * vocab_size);
  double start = now();
  for (int begin = 0; begin < length; begin += kBatch) {
    append(context, batch, tokens.data() + begin, std::min(kBatch, length - begin), begin);
  }
  timing.prefill_seconds = now() - start;
  keep_logits();
  for (int i = length; i < length + steps; ++i) {
    start = now();
    append(context, batch, tokens.data() + i, 1, i);
    timing.decode_seconds += now() - start;
    keep_logits();
  }
  return timing;
}

Tokens read_tokens(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string bytes(std::istreambuf_iterator<char>(file), {});
  static_assert(sizeof(llama_token) == 4);
  Tokens tokens(bytes.size() / 4);
  std::copy_n(bytes.data(), tokens.size() * 4, reinterpret_cast<char*>(tokens.data()));
  return tokens;
}

// Only warnings and errors: standard error is shown when an arm fails.
void log(ggml_log_level level, const char* text, void*) {
  if (level == GGML_LOG_LEVEL_WARN || level == GGML_LOG_LEVEL_ERROR) std::fputs(text, stderr);
}

void run(int argc, char** argv) {
  if (argc < 8) throw std::runtime_error("usage: peer MODEL.gguf repacked|mapped TOKENS LOGITS STEPS THREADS CONTEXT...");
  const bool repacked = is_repacked(argv[2]);
  const Tokens tokens = read_tokens(argv[3]);
  const std::string logits_path = argv[4];
  const int steps = std::stoi(argv[5]), threads = std::stoi(argv[6]);
  std::vector<int> contexts;
  for (int i = 7; i < argc; ++i) contexts.push_back(std::stoi(argv[i]));
  const int longest = *std::max_element(contexts.begin(), contexts.end()) + steps;
  if (longest > static_cast<int>(tokens.size())) throw std::runtime_error("TOKENS has fewer ids than the contexts need");

  llama_log_set(log, nullptr);
  llama_backend_init();
  llama_model_params model_params = llama_model_default_params();
  set_repacked(model_params, repacked);
  llama_model* model = llama_model_load_from_file(argv[1], model_params);
  if (model == nullptr) throw std::runtime_error(std::string("cannot load ") + argv[1]);
  llama_context_params params = llama_context_default_params();
  params.n_ctx = (longest + 255) / 256 * 256;
  params.n_batch = kBatch;
  params.n_threads = params.n_threads_batch = threads;
  llama_context* context = llama_init_from_model(model, params);
  if (context == nullptr) throw std::runtime_error("cannot create a context");
  char vocab[32] = {};
  if (llama_model_meta_val_str(model, "qwen35moe.vocab_size", vocab, sizeof vocab) < 0) {
    throw std::runtime_error("the model has no qwen35moe.vocab_size");
  }
  const int vocab_size = std::stoi(vocab);
  llama_batch batch = llama_batch_init(kBatch, 0, 1);

  std::ofstream logits;
  if (logits_path != "-") logits.open(logits_path, std::ios::binary);
  const Tokens reversed(tokens.rbegin(), tokens.rend());
  std::string metrics;
  std::uint64_t digest = 14695981039346656037u;  // FNV-1a over the most likely token of each row
  for (const int length : contexts) {
    measure(context, batch, reversed, length, steps, vocab_size);
    const Timing timing = measure(context, batch, tokens, length, steps, vocab_size);
    for (auto row = timing.logits.begin(); row != timing.logits.end(); row += vocab_size) {
      const auto best = static_cast<std::uint64_t>(std::max_element(row, row + vocab_size) - row);
      digest = (digest ^ best) * 1099511628211u;
    }
    if (logits.is_open()) {
      logits.write(reinterpret_cast<const char*>(timing.logits.data()), timing.logits.size() * sizeof(float));
    }
    char text[256];
    std::snprintf(text, sizeof text, "%s\"prefill_%d_tokens_per_second\": %.4f, \"decode_%d_tokens_per_second\": %.4f",
                  metrics.empty() ? "" : ", ", length, length / timing.prefill_seconds, length,
                  steps / timing.decode_seconds);
    metrics += text;
  }
  if (logits.is_open() && !logits.flush()) throw std::runtime_error("cannot write " + logits_path);
  std::printf("{\"digest\": \"%016llx\", \"metrics\": {%s}}\n", static_cast<unsigned long long>(digest), metrics.c_str());
  llama_batch_free(batch);
  llama_free(context);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run(argc, argv);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
