// attn_out, ffn_up and ffn_down of a layer in one launch (layer_end.cu): for which sizes, and how a
// block's shared memory is cut.
#pragma once

#include <optional>

#include "kernels/cuda/plan/device.h"

namespace edgellm::cuda {

struct LayerEndSize {
  int rows = 0;   // of activations
  int q_dim = 0;  // columns of attn_out
  int dim = 0;    // of the residual stream
  int ffn = 0;
  bool has_ffn_sub_norm = false;
};

// Tokens of a cluster. Each block normalises and quantises its share of them for all blocks.
inline constexpr int kLayerEndTokens = 24;
inline constexpr int kLayerEndOwnTokens = kLayerEndTokens / kClusterBlocks;
inline constexpr int kLayerEndGroups = 6;  // warpgroups of a block
inline constexpr int kLayerEndWarps = 4 * kLayerEndGroups;

// Fours of columns that a lane quantises, at most: of attn_out or the residual stream, and of a
// block's columns of ffn_down.
inline constexpr int kLayerEndQuads = 5;
inline constexpr int kLayerEndGatedQuads = 2;

// The sizes as a block has them, and where things lie in its shared memory, in bytes. K steps have
// 64 columns; the rows of the residual stream are cut into tiles of 16.
struct LayerEndCut {
  int out_steps, up_steps, down_steps;  // of the products

  EDGELLM_HOST_DEVICE constexpr LayerEndCut(int q_dim, int dim, int ffn)
      : out_steps(q_dim / 64), up_steps(dim / 64), down_steps(ffn / 64) {}

  EDGELLM_HOST_DEVICE constexpr int dim() const { return 64 * up_steps; }
  EDGELLM_HOST_DEVICE constexpr int tiles() const { return dim() / 16; }
  // Of a block, at most: tiles of the residual stream, and K steps of ffn_down.
  EDGELLM_HOST_DEVICE constexpr int own_tiles() const { return divide_up(tiles(), kClusterBlocks); }
  EDGELLM_HOST_DEVICE constexpr int own_steps() const {
    return divide_up(down_steps, kClusterBlocks);
  }

  // From a weight row to the next: an odd number of 16 bytes, so that a warp's reads of eight rows
  // meet all banks.
  EDGELLM_HOST_DEVICE static constexpr int pitch(int steps) { return 16 * (steps | 1); }
  // Steps are read by twos, so of the last row one more may be.
  EDGELLM_HOST_DEVICE static constexpr int weight_bytes(int rows, int steps) {
    return rows * pitch(steps) + 16;
  }
  // A block of two K steps of codes: 128 bytes of each token.
  static constexpr int kCodeBytes = kLayerEndTokens * 128;
  // The sums of a warp: 16 rows and all tokens.
  static constexpr int kSumBytes = 16 * kLayerEndTokens * 4;

  // Codes of all tokens, of one product after the other; at a multiple of 1024 bytes.
  EDGELLM_HOST_DEVICE static constexpr int codes() { return 0; }
  EDGELLM_HOST_DEVICE constexpr int out_weights() const {
    const int most = out_steps > up_steps ? out_steps : up_steps;
    return divide_up(most > down_steps ? most : down_steps, 2) * kCodeBytes;
  }
  EDGELLM_HOST_DEVICE constexpr int up_weights() const {
    return out_weights() + weight_bytes(16 * own_tiles(), out_steps);
  }
  EDGELLM_HOST_DEVICE constexpr int down_weights() const {
    return up_weights() + weight_bytes(2 * 64 * own_steps(), up_steps);
  }
  // Of attn_out and ffn_down [part of the columns][own tile]; what ffn_up makes, [token][pair].
  EDGELLM_HOST_DEVICE constexpr int sums() const {
    return down_weights() + weight_bytes(16 * own_tiles(), down_steps);
  }
  // Floats from a token of what ffn_up makes to the next.
  EDGELLM_HOST_DEVICE constexpr int gated_pitch() const { return 64 * own_steps() + 4; }
  // [own token][dim] of the residual stream.
  EDGELLM_HOST_DEVICE constexpr int stream() const { return sums() + kLayerEndWarps * kSumBytes; }
  EDGELLM_HOST_DEVICE constexpr int out_gain() const {
    return stream() + kLayerEndOwnTokens * dim() * 4;
  }
  EDGELLM_HOST_DEVICE constexpr int up_gain() const { return out_gain() + 64 * out_steps * 4; }
  EDGELLM_HOST_DEVICE constexpr int bytes() const { return up_gain() + 64 * up_steps * 4 + 1024; }
};

struct LayerEndPlan {
  LaunchSize launch;
};

// None where the device or the sizes are not for it, or the ops by themselves are faster.
std::optional<LayerEndPlan> pick_layer_end(const LayerEndSize& size, const DeviceTraits& device);

}  // namespace edgellm::cuda
