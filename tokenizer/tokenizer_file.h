// A tokenizer.json taken apart: the two big tables flat, all the rest as a JSON tree.
//
// The tables of LLaMA-3 are 9 MB of text with 690 000 strings. A tree of them would cost more than
// everything else that loading does. So this is not base/json.h's reader: the tables go to arenas
// while the text is parsed, in the file's order. And of equal keys the last one counts, as for the
// programs that write such files.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/string_arena.h"

namespace edgellm::tok {

struct TokenizerFile {
  struct VocabEntry {
    std::string_view content;  // in vocab_text
    int32_t id;
  };
  struct Merge {
    std::string_view left, right;  // in merge_text
  };

  nlohmann::json rest;  // the file without model.vocab and model.merges
  bool has_vocab = false, has_merges = false;
  std::vector<VocabEntry> vocab;  // in file order; neither contents nor ids are checked to differ
  std::vector<Merge> merges;      // in file order, which is their rank
  StringArena vocab_text, merge_text;
};

// Parses `json`. Throws Error, kModelFile, beginning with `where`, for what is not JSON, nested too
// deep, or has a vocab or merges of another form than BPE's. A vocab or merges of another JSON type
// stays in `rest`: it belongs to another kind of model.
TokenizerFile read_tokenizer_file(std::string_view json, const std::string& where);

}  // namespace edgellm::tok
