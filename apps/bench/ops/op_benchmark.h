// The benchmark of the ops on any device: which ops, in which passes, after which checks.
#pragma once

#include <functional>
#include <memory>

#include "apps/bench/ops/op_device.h"
#include "apps/bench/ops/op_timing.h"
#include "model/config.h"

namespace edgellm::bench {

// The layers and the head have a device object each: the memory of the first is free before the
// second allocates.
using MakeOpDevice = std::function<std::unique_ptr<OpDevice>()>;

// Every op of the layers in every pass of the options, compared with its unfused chain and timed;
// then the head. Results go to `sink` as they come.
void time_ops(const ModelConfig& config, const OpOptions& options, const MakeOpDevice& make_device,
              uint64_t cache_bytes, const OpSink& sink);

}  // namespace edgellm::bench
