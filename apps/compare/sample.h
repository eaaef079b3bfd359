// One answer of either side of `edgellm compare`, measured alike: by the same clock, from the
// moment when the text of the prompt is handed over.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/common/measured.h"
#include "apps/compare/clients/peer.h"
#include "engine/backend.h"
#include "tokenizer/tokenizer.h"

namespace edgellm::compare {

// "Pieces" are what arrives together: tokens on our side, the stream's pieces of text on theirs.
struct Sample {
  std::string text;
  std::string finish_reason;
  Measured<int64_t> prompt_tokens;  // each side counts with its own tokenizer
  Measured<int64_t> tokens;         // of the answer, a stop token included
  int64_t pieces = 0;
  std::vector<int64_t> inter_token_ns;  // between pieces
  Measured<int64_t> ttft_ns;            // to the first piece
  int64_t total_ns = 0;                 // to the end of the answer
  Measured<double> prefill_tps;         // prompt_tokens / ttft
  Measured<double> decode_tps;          // (tokens - 1) / time from the first token to the last
  Measured<double> text_bytes_per_s;    // of the text after the first piece, in the same time
  peers::ServerFigures own;             // what that side's own clock says
};

struct OurSide {
  Backend* backend;
  const Tokenizer* tokenizer;
};

// Greedy, to max_tokens: stop tokens do not end it. Throws Interrupted after a
// signal, Error (kPromptDoesNotFit) where prompt and answer exceed the context.
Sample measure_ours(const OurSide& side, const peers::CompletionRequest& request);

Sample measure_theirs(peers::Peer& peer, const peers::CompletionRequest& request);

// The figures of a streamed answer.
Sample sample_of(const peers::Completion& completion);

}  // namespace edgellm::compare
