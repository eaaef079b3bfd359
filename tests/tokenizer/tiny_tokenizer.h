// A tokenizer.json small enough to think about: the token of every byte has the byte as its id, and
// what merges make is numbered from 256 on. Tests change the tree as they need and load it.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tokenizer/byte_level.h"
#include "tokenizer/decoder.h"
#include "tokenizer/tokenizer.h"

namespace edgellm::test {

using nlohmann::json;
using Ids = std::vector<int32_t>;

// `merges` are byte strings; the i-th makes the token 256 + i.
inline json tiny_tokenizer(const std::vector<std::pair<std::string, std::string>>& merges = {}) {
  json vocab = json::object();
  for (int byte = 0; byte < 256; ++byte) {
    vocab[std::string(tok::byte_to_alphabet(static_cast<uint8_t>(byte)))] = byte;
  }
  json merge_list = json::array();
  int32_t next_id = 256;
  for (const auto& [left, right] : merges) {
    vocab[tok::to_alphabet(left + right)] = next_id++;
    merge_list.push_back(json::array({tok::to_alphabet(left), tok::to_alphabet(right)}));
  }
  return {{"version", "1.0"},
          {"added_tokens", json::array()},
          {"normalizer", nullptr},
          {"pre_tokenizer",
           {{"type", "ByteLevel"},
            {"add_prefix_space", false},
            {"trim_offsets", true},
            {"use_regex", false}}},
          {"post_processor", nullptr},
          {"decoder", {{"type", "ByteLevel"}}},
          {"model",
           {{"type", "BPE"},
            {"dropout", nullptr},
            {"unk_token", nullptr},
            {"byte_fallback", false},
            {"ignore_merges", false},
            {"vocab", vocab},
            {"merges", merge_list}}}};
}

// Appends an added token with the next free id and all flags false, and returns its place, where
// flags can be set.
inline json& add_token(json& tree, const std::string& content) {
  const size_t id = tree["model"]["vocab"].size() + tree["added_tokens"].size();
  tree["added_tokens"].push_back({{"id", id},
                                  {"content", content},
                                  {"single_word", false},
                                  {"lstrip", false},
                                  {"rstrip", false},
                                  {"normalized", false},
                                  {"special", false}});
  return tree["added_tokens"].back();
}

// LLaMA-2's pipeline with the ids 0 <unk>, 1 <s>, 2 </s>, 3 + b the bytes, then `tokens` in order.
inline json tiny_sentencepiece(
    const std::vector<std::string>& tokens,
    const std::vector<std::pair<std::string, std::string>>& merges = {}) {
  json tree = tiny_tokenizer();
  json vocab = {{"<unk>", 0}, {"<s>", 1}, {"</s>", 2}};
  for (int byte = 0; byte < 256; ++byte) {
    vocab[tok::fallback_token(static_cast<uint8_t>(byte))] = 3 + byte;
  }
  for (const std::string& token : tokens) vocab[token] = vocab.size();
  tree["model"]["vocab"] = vocab;
  tree["model"]["merges"] = merges;
  tree["model"]["unk_token"] = "<unk>";
  tree["model"]["fuse_unk"] = true;
  tree["model"]["byte_fallback"] = true;
  for (const char* token : {"<unk>", "<s>", "</s>"}) {
    add_token(tree, token)["special"] = true;
    tree["added_tokens"].back()["id"] = vocab[token];
  }
  tree["normalizer"] = {
      {"type", "Sequence"},
      {"normalizers",
       {{{"type", "Prepend"}, {"prepend", "\u2581"}},
        {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "\u2581"}}}}};
  tree["pre_tokenizer"] = nullptr;
  tree["decoder"] = {{"type", "Sequence"},
                     {"decoders",
                      {{{"type", "Replace"}, {"pattern", {{"String", "\u2581"}}}, {"content", " "}},
                       {{"type", "ByteFallback"}},
                       {{"type", "Fuse"}},
                       {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}}}};
  return tree;
}

inline Tokenizer load(const json& tree) { return Tokenizer::from_json(tree.dump(), "tiny.json"); }

// The ids of a text that no merge applies to.
inline Ids bytes_of(const std::string& text) {
  Ids ids;
  for (const char c : text) ids.push_back(static_cast<uint8_t>(c));
  return ids;
}

}  // namespace edgellm::test
