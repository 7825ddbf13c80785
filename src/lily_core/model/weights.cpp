#include "model/weights.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <utility>

#include "device/widen.h"

namespace lily {
namespace {

using Rows = std::vector<std::uint32_t>;

void append(Rows& rows, std::uint32_t begin, std::uint32_t count) {
  rows.resize(rows.size() + count);
  std::iota(rows.end() - count, rows.end(), begin);
}

// q_proj stores [query D | gate D] per head -> [query of all heads | gate of all heads].
Rows query_gate_order(const ModelConfig& config) {
  Rows rows;
  for (std::uint32_t part = 0; part < 2; ++part)
    for (std::uint32_t head = 0; head < config.num_attention_heads; ++head)
      append(rows, (2 * head + part) * config.head_dim, config.head_dim);
  return rows;
}

// in_proj_qkvz of qwen3_next stores [q | k | v of its value heads | z of them] per key head -> [all q | all k | all v | all z].
Rows qkvz_order(const ModelConfig& config) {
  const std::uint32_t dk = config.linear_key_head_dim;
  const std::uint32_t values = config.value_dim() / config.linear_num_key_heads;  // v rows of a key head
  const std::uint32_t group = 2 * dk + 2 * values;
  Rows rows;
  auto gather = [&](std::uint32_t offset, std::uint32_t count) {
    for (std::uint32_t head = 0; head < config.linear_num_key_heads; ++head) append(rows, head * group + offset, count);
  };
  gather(0, dk), gather(dk, dk), gather(2 * dk, values), gather(2 * dk + values, values);
  return rows;
}

// in_proj_ba of qwen3_next stores [b of its value heads | a of them] per key head -> [all b | all a].
Rows ba_order(const ModelConfig& config) {
  const std::uint32_t values = config.linear_num_value_heads / config.linear_num_key_heads;
  Rows rows;
  for (std::uint32_t part = 0; part < 2; ++part)
    for (std::uint32_t head = 0; head < config.linear_num_key_heads; ++head) append(rows, (2 * head + part) * values, values);
  return rows;
}

class Loader {
 public:
  Loader(Checkpoint& checkpoint, const ModelConfig& config, Device& device, const LoadProgress& progress)
      : checkpoint_(checkpoint), config_(config), device_(device), progress_(progress) {}

  Weights load() {
    const bool wrapped = config_.family == Family::kQwen35Moe;
    const std::string root = wrapped ? "language_model.model." : "model.";
    const std::string head = wrapped ? "language_model.lm_head" : "lm_head";
    const std::uint32_t hidden = config_.hidden_size, vocab = config_.vocab_size;
    total_bytes_ = checkpoint_.remaining_bytes();
    report_progress();

    weights_.embed_tokens = weight("embed_tokens", WeightRole::kEmbedding, hidden, {{root + "embed_tokens", vocab}});
    for (std::uint32_t i = 0; i < config_.num_hidden_layers; ++i) {
      const std::string layer = root + "layers." + std::to_string(i) + ".";
      if (config_.is_full_attention[i])
        weights_.attention_layers.push_back(attention_layer(layer));
      else
        weights_.linear_layers.push_back(linear_layer(layer));
    }
    weights_.norm = vector(root + "norm.weight", {hidden});
    weights_.lm_head = weight("lm_head", WeightRole::kMatrix, hidden, {{head, vocab}});
    checkpoint_.finish();
    return std::move(weights_);
  }

 private:
  // A module to take: its rows as stored, and the order in which the model wants them (empty: the same).
  struct Module {
    std::string name;
    std::uint32_t rows;
    Rows order = {};
  };

  LinearLayerWeights linear_layer(const std::string& layer) {
    const std::string attn = layer + "linear_attn.";
    const std::uint32_t hidden = config_.hidden_size, value_dim = config_.value_dim(), heads = config_.linear_num_value_heads;
    const std::uint32_t channels = config_.conv_channels();
    std::vector<Module> in;
    if (config_.family == Family::kQwen3Next)
      in = {{attn + "in_proj_qkvz", channels + value_dim, qkvz_order(config_)},
            {attn + "in_proj_ba", 2 * heads, ba_order(config_)}};
    else
      in = {{attn + "in_proj_qkv", channels},
            {attn + "in_proj_z", value_dim},
            {attn + "in_proj_b", heads},
            {attn + "in_proj_a", heads}};

    LinearLayerWeights w;
    w.input_norm = vector(layer + "input_layernorm.weight", {hidden});
    w.gdn_in = weight(attn + "gdn_in", WeightRole::kMatrix, hidden, std::move(in));
    w.conv1d = vector(attn + "conv1d.weight", {channels, LILY_CONV_TAPS, 1});
    w.A_log = vector(attn + "A_log", {heads});
    w.dt_bias = vector(attn + "dt_bias", {heads});
    w.norm = vector(attn + "norm.weight", {config_.linear_value_head_dim});
    w.gdn_out = weight(attn + "gdn_out", WeightRole::kMatrix, value_dim, {{attn + "out_proj", hidden}});
    w.moe = moe(layer);
    return w;
  }

  AttentionLayerWeights attention_layer(const std::string& layer) {
    const std::string attn = layer + "self_attn.";
    const std::uint32_t hidden = config_.hidden_size, head_dim = config_.head_dim;
    const std::uint32_t query_dim = config_.num_attention_heads * head_dim, kv_dim = config_.num_key_value_heads * head_dim;

    AttentionLayerWeights w;
    w.input_norm = vector(layer + "input_layernorm.weight", {hidden});
    w.attn_in = weight(attn + "attn_in", WeightRole::kMatrix, hidden,
                       {{attn + "q_proj", 2 * query_dim, query_gate_order(config_)},
                        {attn + "k_proj", kv_dim},
                        {attn + "v_proj", kv_dim}});
    w.q_norm = vector(attn + "q_norm.weight", {head_dim});
    w.k_norm = vector(attn + "k_norm.weight", {head_dim});
    w.attn_out = weight(attn + "attn_out", WeightRole::kMatrix, query_dim, {{attn + "o_proj", hidden}});
    w.moe = moe(layer);
    return w;
  }

  MoeWeights moe(const std::string& layer) {
    const std::string mlp = layer + "mlp.", experts = mlp + "switch_mlp.", shared = mlp + "shared_expert.";
    const std::uint32_t hidden = config_.hidden_size, count = config_.num_experts;
    const std::uint32_t width = config_.moe_intermediate_size, shared_width = config_.shared_expert_intermediate_size;

    MoeWeights w;
    w.norm = vector(layer + "post_attention_layernorm.weight", {hidden});
    w.router = weight(mlp + "router", WeightRole::kMatrix, hidden, {{mlp + "gate", count}, {mlp + "shared_expert_gate", 1}});
    w.experts_up = weight(mlp + "experts_up", WeightRole::kExpertsGateUp, hidden,
                          {{experts + "gate_proj", width}, {experts + "up_proj", width}});
    w.experts_down = weight(mlp + "experts_down", WeightRole::kExperts, width, {{experts + "down_proj", hidden}});
    w.shared_up = weight(mlp + "shared_up", WeightRole::kGateUp, hidden,
                         {{shared + "gate_proj", shared_width}, {shared + "up_proj", shared_width}});
    w.shared_down = weight(mlp + "shared_down", WeightRole::kMatrix, shared_width, {{shared + "down_proj", hidden}});
    return w;
  }

  PreparedWeight weight(const std::string& name, WeightRole role, std::uint32_t columns, std::vector<Module> modules) {
    const bool has_experts = role == WeightRole::kExperts || role == WeightRole::kExpertsGateUp;
    const std::uint32_t experts = has_experts ? config_.num_experts : 1;
    HostWeight host{.name = name, .role = role, .experts = experts, .columns = columns, .parts = {}};
    for (Module& module : modules) host.parts.push_back(matrix(module, has_experts, columns));
    PreparedWeight prepared = device_.prepare(host);
    weights_.mapped_bytes += prepared.mapped_bytes;
    weights_.copied_bytes += prepared.copied_bytes;
    report_progress();
    return prepared;
  }

  HostMatrix matrix(Module& module, bool has_experts, std::uint32_t columns) {
    const std::uint32_t bits = config_.bits_of(module.name);
    if (checkpoint_.contains(module.name + ".weight") && !checkpoint_.contains(module.name + ".scales"))
      throw CheckpointError("the module is not quantised",
                            {.path = checkpoint_.folder(),
                             .tensor = module.name + ".weight",
                             .expected = "4 or 8 bits in groups of 64, with scales and biases",
                             .fix = "Convert the original weights again: " + convert_command("FOLDER")});
    auto take = [&](const char* kind, std::uint32_t width, std::initializer_list<Dtype> dtypes) {
      std::vector<std::uint64_t> shape{module.rows, width};
      if (has_experts) shape.insert(shape.begin(), config_.num_experts);
      return &checkpoint_.take(module.name + kind, shape, dtypes);
    };
    HostMatrix part;
    part.module = module.name;
    part.bits = bits;
    part.codes = take(".weight", columns * bits / 32, {Dtype::kU32});
    part.scales = take(".scales", columns / LILY_GROUP_SIZE, {Dtype::kBF16, Dtype::kF16, Dtype::kF32});
    part.biases = take(".biases", columns / LILY_GROUP_SIZE, {Dtype::kBF16, Dtype::kF16, Dtype::kF32});
    part.rows = module.rows;
    part.row_order = std::move(module.order);
    done_bytes_ += part.codes->length() + part.scales->length() + part.biases->length();
    return part;
  }

  Vector vector(const std::string& name, const std::vector<std::uint64_t>& shape) {
    const TensorSource& tensor = checkpoint_.take(name, shape, {Dtype::kBF16, Dtype::kF16, Dtype::kF32});
    std::vector<std::byte> stored(tensor.length());
    tensor.read(stored.data(), 0, stored.size());
    std::vector<float> values(stored.size() / size_of(tensor.dtype()));
    widen_floats(tensor.dtype(), stored.data(), values.data(), values.size());
    // Not every one would show in the logits: an infinite A_log only makes a head forget all.
    const auto bad = std::ranges::find_if_not(values, [](float value) { return std::isfinite(value); });
    if (bad != values.end())
      throw CheckpointError("the tensor holds NaN or infinity", {.path = tensor.path(),
                                                                 .tensor = name,
                                                                 .expected = "finite values",
                                                                 .found = std::to_string(*bad) + " at place " +
                                                                          std::to_string(bad - values.begin()),
                                                                 .fix = "Download the checkpoint again"});
    Vector buffer = device_.allocate(name, values.size() * sizeof(float), Memory::kPrivate);
    device_.write({buffer.get(), 0, buffer->length()}, values.data());
    weights_.copied_bytes += buffer->length();
    done_bytes_ += tensor.length();
    return buffer;
  }

  void report_progress() const {
    if (progress_) progress_(done_bytes_, total_bytes_);
  }

  Checkpoint& checkpoint_;
  const ModelConfig& config_;
  Device& device_;
  const LoadProgress& progress_;
  Weights weights_;
  std::uint64_t done_bytes_ = 0;
  std::uint64_t total_bytes_ = 0;
};

}  // namespace

Weights load_weights(Checkpoint& checkpoint, const ModelConfig& config, Device& device, const LoadProgress& progress) {
  return Loader(checkpoint, config, device, progress).load();
}

}  // namespace lily
