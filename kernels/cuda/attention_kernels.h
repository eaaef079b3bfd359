// The kernels behind attention, launched by plan (plan/attention.h).
#pragma once

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/plan/attention.h"

namespace edgellm::cuda {

// The codes of queries for prefill (code_tile.h).
struct CodedQueries {
  int8_t* codes;   // [rows, heads, query_code_bytes()]
  float* factors;  // [rows, heads] of their scores
};

// What attention of prompts works on: rows whose queries are coded, and whose keys and values the
// cache holds.
struct CodedRows {
  CodedQueries queries;
  KvCache kv;
  RowPlaces places;
  float* out;  // [rows, heads * head_dim]
  int rows, heads;

  EDGELLM_HOST_DEVICE int group() const { return heads / kv.kv_heads; }
};

// attention_decode.cu:
void launch_attention(const DecodePlan& plan, const AttentionArgs& args, const Workspace& workspace,
                      cudaStream_t stream);
// attention_code.cu: codes the queries, appends keys and values.
void code_rows(const CodePlan& plan, const AttentionArgs& args, const CodedQueries& out,
               cudaStream_t stream);
// attention_prefill.cu:
void launch_attention(const PrefillPlan& plan, const CodedRows& rows, cudaStream_t stream);
// attention_wgmma.cu:
void launch_attention(const WgmmaPlan& plan, const CodedRows& rows, cudaStream_t stream);
// attention_float.cu:
void launch_attention(const FloatPlan& plan, const AttentionArgs& args, cudaStream_t stream);

}  // namespace edgellm::cuda
