#include "apps/session/golden.h"

#include <algorithm>

#include "apps/common/signals.h"
#include "apps/session/prompt.h"
#include "apps/session/session.h"
#include "engine/backend.h"
#include "engine/generate.h"
#include "kernels/cpu/machine.h"
#include "kernels/integer_sizes.h"

namespace edgellm {
namespace {

constexpr int kGoldenTokens = 16;
constexpr const char* kGoldenText = "Once upon a time";

std::vector<int32_t> golden_prompt(const ModelFile& model) {
  if (const auto tokenizer = load_tokenizer(model)) {
    return encode_prompt(*tokenizer, model.tokenizer(), kGoldenText);
  }
  // Any ids do; a vocabulary of one has only id 0.
  std::vector<int32_t> ids = {1, 2, 3, 4};
  for (int32_t& id : ids) id = std::min(id, model.config().vocab - 1);
  return ids;
}

}  // namespace

std::vector<int32_t> greedy_ids(Backend& backend, std::span<const int32_t> prompt_ids, int count) {
  GenerateRequest request;
  request.prompt_ids = prompt_ids;
  request.max_tokens = count;
  request.on_token = [](int32_t) {
    throw_if_interrupted();
    return true;
  };
  return generate(backend, request).token_ids;
}

int golden_context(const ModelConfig& config, size_t n_prompt_ids, int count) {
  return std::min(static_cast<int>(n_prompt_ids) + count, config.max_context);
}

KvType golden_kv_type(const ModelConfig& config) {
  return config.head_dim > kMaxIntegerHeadDim ? KvType::kF32 : KvType::kI16;
}

Golden make_golden(const std::string& path) {
  const ModelFile model = ModelFile::open(path);
  Golden golden;
  golden.prompt_ids = golden_prompt(model);
  // A model with a tiny context gets a golden of the beginning of the prompt.
  const auto room = static_cast<size_t>(model.config().max_context - 1);
  if (golden.prompt_ids.size() > room) golden.prompt_ids.resize(room);
  EngineOptions options;
  options.context = golden_context(model.config(), golden.prompt_ids.size(), kGoldenTokens);
  options.max_rows = std::min(options.context, static_cast<int>(golden.prompt_ids.size()));
  options.threads = cpu::usable_cores();
  options.low_memory = true;
  options.kv_type = golden_kv_type(model.config());
  options.full_head = true;  // few tokens, which shall not depend on more than they must
  const auto backend = make_cpu_backend(model, options);
  golden.greedy_ids = greedy_ids(*backend, golden.prompt_ids, kGoldenTokens);
  return golden;
}

}  // namespace edgellm
