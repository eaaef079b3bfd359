
#include "kernels/cuda/matmul.h"
namespace edgellm::cuda {
void qkv_rows(const QkvArgs& args, const Workspace& workspace, cudaStream_t stream) {
  for (int r = 0; r < args.rows; ++r) { QkvArgs a = args; a.rows = 1; a.x += (size_t)r * args.dim; a.places.sequence += r; a.places.position += r; a.q_out += (size_t)r * args.q.rows; qkv(a, workspace, stream); }
}
void project_rows(const ProjectArgs& args, const Workspace& workspace, cudaStream_t stream) {
  for (int r = 0; r < args.rows; ++r) { ProjectArgs a = args; a.rows = 1; a.y += (size_t)r * args.w.cols; a.x += (size_t)r * args.w.rows; attn_out(a, workspace, stream); }
}
void ffn_up_rows(const FfnUpArgs& args, const Workspace& workspace, cudaStream_t stream) {
  for (int r = 0; r < args.rows; ++r) { FfnUpArgs a = args; a.rows = 1; a.x += (size_t)r * args.gate.cols; a.u += (size_t)r * args.gate.rows; ffn_up(a, workspace, stream); }
}
}
