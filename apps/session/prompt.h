// Where a prompt comes from, and how it becomes ids. The rules are in docs/cli.md.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/model_file.h"
#include "tokenizer/tokenizer.h"

namespace edgellm {

// What the user says about the prompt. At most one of them is given.
struct PromptSource {
  std::optional<std::string> positional;
  std::optional<std::string> text;      // -p
  std::optional<std::string> file;      // -f
  std::optional<std::string> ids_file;  // --ids-file

  bool any() const { return positional || text || file || ids_file; }
};

// Text that is given and its name for messages ("the prompt", "story.txt", "standard input").
struct PromptText {
  std::string text;
  std::string source;
};

// The text that `from` names, without looking at an unnamed standard input. "-" is standard input.
PromptText read_named_text(const PromptSource& from);

// The prompt of a run: the named text, or standard input, or standard input before the named text.
PromptText read_prompt(const PromptSource& from);

// Throws Error (kUsage) with the byte offset where the text is not UTF-8.
void require_utf8(const PromptText& prompt);

// Throws Error (kUsage) where the prompt is empty or not UTF-8.
void require_prompt(const PromptText& prompt);

// The ids of `text` as a prompt: with the template of the tokenizer, and with a BOS in front where
// the model asks for one and the template did not add it.
std::vector<int32_t> encode_prompt(const Tokenizer& tokenizer, const TokenizerInfo& info,
                                   std::string_view text);

// A JSON array of ids, each within the vocabulary, at least one.
std::vector<int32_t> read_ids_file(const std::string& path, int vocab);

// Error (kUsage) for text given to a model that cannot read it.
[[noreturn]] void fail_without_tokenizer(const ModelFile& model);

// The ids a run starts from: of --ids-file, or of the text through the model's tokenizer.
// `prompt` is ignored where `from` names an ids file.
std::vector<int32_t> prompt_ids(const PromptSource& from, const PromptText& prompt,
                                const ModelFile& model, const Tokenizer* tokenizer);

}  // namespace edgellm
