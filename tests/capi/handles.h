// Owners of the C interface's handles, and calls that must succeed.
#pragma once

#include <edgellm.h>

#include <catch2/catch.hpp>
#include <memory>
#include <string>
#include <vector>

namespace edgellm::test {

inline void ok(edgellm_status status) {
  INFO(edgellm_last_error());
  REQUIRE(status == EDGELLM_OK);
}

struct Close {
  void operator()(edgellm_model* model) const { edgellm_model_close(model); }
  void operator()(edgellm_sequence* sequence) const { edgellm_sequence_free(sequence); }
};
using ModelHandle = std::unique_ptr<edgellm_model, Close>;
using SequenceHandle = std::unique_ptr<edgellm_sequence, Close>;

// The CPU, unless the test says otherwise: on a machine with a GPU, too.
inline edgellm_model_options cpu_options() {
  edgellm_model_options options = {};
  options.struct_size = sizeof options;
  options.device = "cpu";
  return options;
}

inline ModelHandle open(const std::string& path,
                        const edgellm_model_options& options = cpu_options()) {
  edgellm_model* model = nullptr;
  ok(edgellm_model_open(path.c_str(), &options, &model));
  return ModelHandle(model);
}

inline SequenceHandle sequence_of(const ModelHandle& model) {
  edgellm_sequence* sequence = nullptr;
  ok(edgellm_sequence_create(model.get(), &sequence));
  return SequenceHandle(sequence);
}

inline void feed(const SequenceHandle& sequence, const std::vector<int32_t>& ids) {
  ok(edgellm_feed_ids(sequence.get(), ids.data(), ids.size()));
}

inline std::vector<float> logits_of(const SequenceHandle& sequence, const ModelHandle& model) {
  std::vector<float> logits(static_cast<size_t>(edgellm_model_vocab(model.get())));
  ok(edgellm_logits(sequence.get(), logits.data(), logits.size()));
  return logits;
}

inline std::vector<int32_t> steps(const SequenceHandle& sequence, int n) {
  std::vector<int32_t> ids(static_cast<size_t>(n));
  for (int32_t& id : ids) ok(edgellm_step(sequence.get(), &id));
  return ids;
}

}  // namespace edgellm::test
