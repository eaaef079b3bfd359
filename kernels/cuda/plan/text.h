// Plans in words, for the log and for the table that a test keeps.
#pragma once

#include <string>

#include "kernels/cuda/plan/attention.h"
#include "kernels/cuda/plan/groups.h"
#include "kernels/cuda/plan/head.h"
#include "kernels/cuda/plan/layer_end.h"
#include "kernels/cuda/plan/linear.h"

namespace edgellm::cuda {

// "short GEMV of 5 steps, 2 pairs, 3 quads: 7 warps, grid 132, 256 threads, 8256 bytes"
std::string text_of(const LinearPlan& plan);
std::string text_of(const GroupPlan& plan);
std::string text_of(const LayerEndPlan& plan);
std::string text_of(const AttentionPlan& plan);
std::string text_of(const LogitsPlan& plan);
std::string text_of(const CertifiedPlan& plan);

}  // namespace edgellm::cuda
