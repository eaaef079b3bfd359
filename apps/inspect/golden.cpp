#include "apps/inspect/golden.h"

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

std::vector<int32_t> greedy_ids(const ModelFile& model, std::span<const int32_t> prompt_ids,
                                int count, int threads, bool low_memory) {
  const int prompt_size = static_cast<int>(prompt_ids.size());
  EngineOptions options;
  options.context = std::min(prompt_size + count, model.config().max_context);
  options.max_rows = std::min(options.context, prompt_size);
  options.threads = threads;
  options.low_memory = low_memory;
  if (model.config().head_dim > kMaxIntegerHeadDim) options.kv_type = KvType::kF32;
  options.full_head = true;  // few tokens, which shall not depend on more than they must
  const auto backend = make_cpu_backend(model, options);
  GenerateRequest request;
  request.prompt_ids = prompt_ids;
  request.max_tokens = count;
  request.on_token = [](int32_t) {
    throw_if_interrupted();
    return true;
  };
  return generate(*backend, request).token_ids;
}

Golden make_golden(const std::string& path) {
  const ModelFile model = ModelFile::open(path);
  Golden golden;
  golden.prompt_ids = golden_prompt(model);
  // A model with a tiny context gets a golden of the beginning of the prompt.
  const auto room = static_cast<size_t>(model.config().max_context - 1);
  if (golden.prompt_ids.size() > room) golden.prompt_ids.resize(room);
  golden.greedy_ids = greedy_ids(model, golden.prompt_ids, kGoldenTokens, cpu::usable_cores(),
                                 /*low_memory=*/true);
  return golden;
}

}  // namespace edgellm
