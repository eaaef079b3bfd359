#include "engine/failing_backend.h"

#include <utility>

#include "base/error.h"

namespace edgellm {
namespace {

class FailingBackend final : public Backend {
 public:
  FailingBackend(std::unique_ptr<Backend> backend, int64_t n_passes)
      : Backend(backend->model(), backend->info()), backend_(std::move(backend)), left_(n_passes) {}

  void set_blocks(int sequence, std::span<const int32_t> blocks) override {
    backend_->set_blocks(sequence, blocks);
  }
  void set_choice(int sequence, const Choice& choice) override {
    backend_->set_choice(sequence, choice);
  }
  void forward(const Batch& batch, const Outputs& outputs) override {
    count_pass();
    backend_->forward(batch, outputs);
  }
  void decode_rows(const Batch& first, int n_max,
                   const std::function<bool(std::span<const int32_t> ids)>& on_ids) override {
    backend_->decode_rows(first, n_max, [&](std::span<const int32_t> ids) {
      count_pass();
      return on_ids(ids);
    });
  }

  MemoryPlan memory() const override { return backend_->memory(); }
  StepLaunches step_launches(size_t rows) const override { return backend_->step_launches(rows); }
  HostWork host_work() const override { return backend_->host_work(); }
  HeadStats head_stats() const override { return backend_->head_stats(); }

 private:
  void count_pass() {
    if (left_-- <= 0) throw Error(ExitCode::kDevice, "the device failed, as it was told to");
  }

  const std::unique_ptr<Backend> backend_;
  int64_t left_;
};

}  // namespace

std::unique_ptr<Backend> make_failing_backend(std::unique_ptr<Backend> backend, int64_t n_passes) {
  return std::make_unique<FailingBackend>(std::move(backend), n_passes);
}

}  // namespace edgellm
