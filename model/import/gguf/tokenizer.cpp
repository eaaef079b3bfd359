#include "model/import/gguf/tokenizer.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <string_view>
#include <unordered_map>

#include "base/json.h"
#include "base/text.h"
#include "model/import/gguf/pre_tokenizers.h"

namespace edgellm::model_io::gguf {
namespace {

const std::string kPrefix = "tokenizer.ggml.";
constexpr const char* kAdvice =
    "; add --tokenizer with the tokenizer.json of the model it was made from";

// llama.cpp's numbers of token types.
enum class TokenType : int64_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6,
};

struct Merge {
  std::string_view left, right;
};

class TokenizerReader {
 public:
  TokenizerReader(const GgufMetadata& metadata, const ModelConfig& config,
                  std::vector<std::string>& notes)
      : metadata_(metadata), config_(config), notes_(notes) {}

  HfTokenizer read();

 private:
  bool is_added(size_t id) const {
    return types_[id] == TokenType::kControl || types_[id] == TokenType::kUserDefined ||
           types_[id] == TokenType::kUnknown;
  }
  std::optional<int32_t> id_of(const std::string& name) const;

  void read_tokens();
  void read_types();
  void count_model_tokens();
  void read_special_ids();
  void read_byte_level();
  std::string pre_name();
  void read_sentencepiece();
  std::vector<Merge> written_merges() const;
  std::vector<Merge> merges_of_scores() const;
  bool read_add_bos(bool otherwise) const;
  Json added_tokens() const;
  Json post_processor() const;
  std::string json_text(Json rest, const Json& model, const std::vector<Merge>& merges) const;
  std::string sampling_json() const;

  const GgufMetadata& metadata_;
  const ModelConfig& config_;
  std::vector<std::string>& notes_;
  std::vector<std::string> tokens_;
  std::vector<TokenType> types_;
  size_t n_model_ = 0;  // ids below are tokens of the model, those from here on added ones
  size_t n_used_ = 0;   // behind these there is only padding
  std::optional<int32_t> bos_, eos_, unk_;
  HfTokenizer result_;
};

// An id that is not in the vocabulary counts as none: files write -1 so.
std::optional<int32_t> TokenizerReader::id_of(const std::string& name) const {
  const auto id = metadata_.find_integer(kPrefix + name, INT64_MIN, INT64_MAX);
  if (!id || *id < 0 || *id >= static_cast<int64_t>(tokens_.size())) return std::nullopt;
  return static_cast<int32_t>(*id);
}

void TokenizerReader::read_tokens() {
  tokens_ = metadata_.texts(kPrefix + "tokens");
  if (tokens_.size() > static_cast<size_t>(config_.vocab)) {
    metadata_.fail("has " + std::to_string(tokens_.size()) + " tokens, the embedding has " +
                   std::to_string(config_.vocab) + " rows");
  }
  std::set<std::string_view> seen;
  for (size_t id = 0; id < tokens_.size(); ++id) {
    if (tokens_[id].empty()) tokens_[id] = "[EMPTY_" + std::to_string(id) + "]";
    if (!is_utf8(tokens_[id])) {
      metadata_.fail("its token " + std::to_string(id) + " is not UTF-8 text");
    }
    if (!seen.insert(tokens_[id]).second) {
      metadata_.fail("its token " + std::to_string(id) + ", '" + printable(tokens_[id]) +
                     "', was there before" + kAdvice);
    }
  }
}

void TokenizerReader::read_types() {
  types_.assign(tokens_.size(), TokenType::kNormal);
  if (metadata_.has(kPrefix + "token_type")) {
    const std::vector<double> types = metadata_.numbers(kPrefix + "token_type");
    if (types.size() != tokens_.size()) {
      metadata_.fail("has " + std::to_string(tokens_.size()) + " tokens and " +
                     std::to_string(types.size()) + " token types");
    }
    for (size_t id = 0; id < types.size(); ++id) {
      const bool known = types[id] >= 1 && types[id] <= 6;
      if (known) types_[id] = static_cast<TokenType>(static_cast<int64_t>(types[id]));
    }
  } else {
    for (size_t id = 0; id < tokens_.size(); ++id) {
      if (tokens_[id].starts_with("<|") && tokens_[id].ends_with("|>")) {
        types_[id] = TokenType::kControl;
      }
    }
  }
  // Converters forget the type of some; nobody types these as text.
  for (const char* name : {"bos_token_id", "eos_token_id", "eot_token_id", "eom_token_id"}) {
    const auto id = id_of(name);
    if (id) types_[static_cast<size_t>(*id)] = TokenType::kControl;
  }
}

// Hugging Face's tokenizers number added tokens from the size of the model's vocabulary on; those
// whose ids lie among others are tokens of the model as well.
void TokenizerReader::count_model_tokens() {
  n_used_ = tokens_.size();
  while (n_used_ > 0 && types_[n_used_ - 1] == TokenType::kUnused) --n_used_;
  n_model_ = n_used_;
  while (n_model_ > 0 && is_added(n_model_ - 1)) --n_model_;
}

void TokenizerReader::read_special_ids() {
  bos_ = id_of("bos_token_id");
  eos_ = id_of("eos_token_id");
  unk_ = id_of("unknown_token_id");
  TokenizerInfo& info = result_.info;
  info.bos = bos_;
  info.chat_template = metadata_.find_text("tokenizer.chat_template").value_or("");
  std::set<int32_t> stops;
  for (const char* name : {"eos_token_id", "eot_token_id"}) {
    if (const auto id = id_of(name)) stops.insert(*id);
  }
  for (size_t id = 0; id < n_used_; ++id) {
    if (types_[id] == TokenType::kControl && ends_turn(tokens_[id], info.chat_template)) {
      stops.insert(static_cast<int32_t>(id));
    }
  }
  info.stop_ids.assign(stops.begin(), stops.end());
  info.special_tokens.emplace();
  for (const auto& [name, key] :
       {std::pair{"bos_token", "bos_token_id"}, std::pair{"eos_token", "eos_token_id"},
        std::pair{"unk_token", "unknown_token_id"}, std::pair{"pad_token", "padding_token_id"}}) {
    const auto id = id_of(key);
    if (id) info.special_tokens->emplace(name, tokens_[static_cast<size_t>(*id)]);
  }
}

bool TokenizerReader::read_add_bos(bool otherwise) const {
  const auto found = metadata_.find_flag(kPrefix + "add_bos_token");
  if (found && *found && !bos_) {
    metadata_.fail("its " + kPrefix + "add_bos_token is true, but it names no bos_token_id");
  }
  return found.value_or(otherwise && bos_.has_value());
}

Json TokenizerReader::added_tokens() const {
  Json list = Json::array();
  for (size_t id = 0; id < n_used_; ++id) {
    if (!is_added(id)) continue;
    list.push_back({{"id", id},
                    {"content", tokens_[id]},
                    {"single_word", false},
                    {"lstrip", false},
                    {"rstrip", false},
                    {"normalized", false},
                    {"special", types_[id] != TokenType::kUserDefined}});
  }
  return list;
}

Json TokenizerReader::post_processor() const {
  if (!result_.info.add_bos) return nullptr;
  const std::string& bos = tokens_[static_cast<size_t>(*bos_)];
  const Json sequence = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
  return {{"type", "TemplateProcessing"},
          {"single", Json::array({{{"SpecialToken", {{"id", bos}, {"type_id", 0}}}}, sequence})},
          {"pair", Json::array({sequence, {{"Sequence", {{"id", "B"}, {"type_id", 1}}}}})},
          {"special_tokens",
           {{bos, {{"id", bos}, {"ids", Json::array({*bos_})}, {"tokens", Json::array({bos})}}}}}};
}

// The two large tables are written as text: a tree of them would cost ten times their memory.
std::string TokenizerReader::json_text(Json rest, const Json& model,
                                       const std::vector<Merge>& merges) const {
  rest["version"] = "1.0";
  rest["added_tokens"] = added_tokens();
  rest["post_processor"] = post_processor();
  std::string text = rest.dump();
  text.back() = ',';  // in place of the closing brace
  text += "\"model\":";
  text += model.dump();
  text.back() = ',';
  text += "\"vocab\":{";
  for (size_t id = 0; id < n_model_; ++id) {
    if (id > 0) text += ',';
    text += Json(tokens_[id]).dump();
    text += ':';
    text += std::to_string(id);
  }
  text += "},\"merges\":[";
  for (const Merge& merge : merges) {
    if (&merge != merges.data()) text += ',';
    text += '[';
    text += Json(merge.left).dump();
    text += ',';
    text += Json(merge.right).dump();
    text += ']';
  }
  text += "]}}\n";
  return text;
}

// ---- gpt2: byte-level BPE -----------------------------------------------------------------------

// Old files do not name the pre-tokenizer. Two vocabularies of their models are known by the ids of
// their special tokens.
std::string TokenizerReader::pre_name() {
  const std::string name = metadata_.find_text(kPrefix + "pre").value_or("default");
  if (name != "default") return name;
  const auto is = [&](size_t id, std::string_view token) {
    return id < tokens_.size() && tokens_[id] == token;
  };
  std::string found = "default";
  if (is(128000, "<|begin_of_text|>") && is(128001, "<|end_of_text|>") &&
      is(128009, "<|eot_id|>")) {
    found = "llama-bpe";
  } else if (is(151643, "<|endoftext|>") && is(151644, "<|im_start|>")) {
    found = "qwen2";
  }
  notes_.push_back("names no pre-tokenizer (tokenizer.ggml.pre); " +
                   (found == "default"
                        ? "text is cut into words as llama.cpp does by default, which may differ "
                          "from the model's own way: --tokenizer takes its tokenizer.json"
                        : "its vocabulary is that of '" + found + "'"));
  return found;
}

std::vector<Merge> TokenizerReader::written_merges() const {
  std::vector<Merge> merges;
  for (const std::string& text : metadata_.texts(kPrefix + "merges")) {
    // The first part may be a space itself.
    const size_t space = text.find(' ', 1);
    if (space == std::string::npos || !is_utf8(text)) {
      metadata_.fail("its merge " + std::to_string(merges.size()) + " is '" + printable(text) +
                     "', expected two parts with a space between them");
    }
    const std::string_view view = text;
    merges.push_back({view.substr(0, space), view.substr(space + 1)});
  }
  return merges;
}

void TokenizerReader::read_byte_level() {
  const std::string name = pre_name();
  const auto kind = find_pre_tokenizer(name);
  if (!kind) {
    metadata_.fail("its pre-tokenizer (tokenizer.ggml.pre) is '" + printable(name) +
                       "', which edgellm does not know" + kAdvice,
                   ExitCode::kUnsupported);
  }
  result_.info.add_bos = read_add_bos(kind->add_bos);
  const Json model = {{"type", "BPE"},          {"dropout", nullptr},
                      {"unk_token", nullptr},   {"fuse_unk", false},
                      {"byte_fallback", false}, {"ignore_merges", kind->ignore_merges}};
  Json pre_tokenizer = kind->pre_tokenizer;
  if (metadata_.find_flag(kPrefix + "add_space_prefix").value_or(false)) {
    Json& steps = pre_tokenizer["pretokenizers"];
    for (Json& step : steps) {
      if (step["type"] == "ByteLevel") step["add_prefix_space"] = true;
    }
  }
  const Json rest = {{"normalizer", kind->normalizer},
                     {"pre_tokenizer", pre_tokenizer},
                     {"decoder",
                      {{"type", "ByteLevel"},
                       {"add_prefix_space", true},
                       {"trim_offsets", true},
                       {"use_regex", true}}}};
  result_.tokenizer_json = json_text(rest, model, written_merges());
}

// ---- llama: SentencePiece's BPE, pieces with scores ---------------------------------------------

// A merge makes the piece with the highest score, so the order of the scores is that of the merges:
// for each piece, every way to put it together from two others.
std::vector<Merge> TokenizerReader::merges_of_scores() const {
  // Bounds the time that hostile pieces could take; real ones have at most some tens of bytes.
  constexpr size_t kMaxPieceBytes = 256;
  const std::vector<double> scores = metadata_.numbers(kPrefix + "scores");
  if (scores.size() != tokens_.size() ||
      !std::all_of(scores.begin(), scores.end(),
                   [](double score) { return std::isfinite(score); })) {
    metadata_.fail("has " + std::to_string(tokens_.size()) + " tokens and " +
                   std::to_string(scores.size()) + " scores, expected as many finite ones");
  }
  std::unordered_map<std::string_view, size_t> pieces;
  for (size_t id = 0; id < n_model_; ++id) {
    if (types_[id] == TokenType::kNormal || types_[id] == TokenType::kUserDefined) {
      pieces.emplace(tokens_[id], id);
    }
  }
  struct Candidate {
    Merge merge;
    double score;
    size_t id, left_characters, right_characters, left_id, right_id;
  };
  std::vector<Candidate> candidates;
  for (size_t id = 0; id < n_model_; ++id) {
    const std::string_view piece = tokens_[id];
    if (piece.size() > kMaxPieceBytes || !pieces.contains(piece)) continue;
    for (size_t cut = 1; cut < piece.size(); ++cut) {
      const bool inside_character = (static_cast<unsigned char>(piece[cut]) & 0xC0) == 0x80;
      if (inside_character) continue;
      const auto left = pieces.find(piece.substr(0, cut));
      if (left == pieces.end()) continue;
      const auto right = pieces.find(piece.substr(cut));
      if (right == pieces.end()) continue;
      candidates.push_back({{left->first, right->first},
                            scores[id],
                            id,
                            count_characters(left->first),
                            count_characters(right->first),
                            left->second,
                            right->second});
    }
  }
  // The order of Hugging Face's converter: the score, then the lengths, then the pieces' ids. Some
  // files have one score for all; there the ids are in the order that the scores had.
  std::stable_sort(candidates.begin(), candidates.end(), [](const auto& a, const auto& b) {
    if (a.score != b.score) return a.score > b.score;
    if (a.id != b.id) return a.id < b.id;
    if (a.left_characters != b.left_characters) return a.left_characters > b.left_characters;
    if (a.right_characters != b.right_characters) return a.right_characters > b.right_characters;
    if (a.left_id != b.left_id) return a.left_id < b.left_id;
    return a.right_id < b.right_id;
  });
  std::vector<Merge> merges;
  for (const Candidate& candidate : candidates) merges.push_back(candidate.merge);
  return merges;
}

void TokenizerReader::read_sentencepiece() {
  const std::string kSpace = "\xE2\x96\x81";  // U+2581
  result_.info.add_bos = read_add_bos(true);
  const bool prefix = metadata_.find_flag(kPrefix + "add_space_prefix").value_or(true);
  const bool has_bytes = std::find(types_.begin(), types_.end(), TokenType::kByte) != types_.end();
  const Json unk = unk_ ? Json(tokens_[static_cast<size_t>(*unk_)]) : Json(nullptr);
  const Json model = {{"type", "BPE"},    {"dropout", nullptr},         {"unk_token", unk},
                      {"fuse_unk", true}, {"byte_fallback", has_bytes}, {"ignore_merges", false}};
  Json normalizers = Json::array();
  Json decoders =
      Json::array({{{"type", "Replace"}, {"pattern", {{"String", kSpace}}}, {"content", " "}},
                   {{"type", "ByteFallback"}},
                   {{"type", "Fuse"}}});
  if (prefix) {
    normalizers.push_back({{"type", "Prepend"}, {"prepend", kSpace}});
    decoders.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  }
  normalizers.push_back({{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", kSpace}});
  const Json rest = {{"normalizer", {{"type", "Sequence"}, {"normalizers", normalizers}}},
                     {"pre_tokenizer", nullptr},
                     {"decoder", {{"type", "Sequence"}, {"decoders", decoders}}}};
  result_.tokenizer_json = json_text(rest, model, merges_of_scores());
}

std::string TokenizerReader::sampling_json() const {
  Json sampling = Json::object();
  for (const auto& [key, name] :
       {std::pair{"temp", "temperature"}, std::pair{"top_k", "top_k"}, std::pair{"top_p", "top_p"},
        std::pair{"min_p", "min_p"}, std::pair{"penalty_repeat", "repetition_penalty"}}) {
    const std::string whole = std::string("general.sampling.") + key;
    if (!metadata_.has(whole)) continue;
    const double value = metadata_.any_number(whole);
    // A float32 as the decimal that was meant; a count as one.
    sampling[name] = std::string_view(key) == "top_k"
                         ? Json(static_cast<int64_t>(std::clamp(value, 0.0, 1e9)))
                         : Json(shortest_decimal(static_cast<float>(value)));
  }
  return sampling.dump();
}

HfTokenizer TokenizerReader::read() {
  result_.info.sampling_json = sampling_json();
  const std::string kind = metadata_.find_text(kPrefix + "model").value_or("none");
  if (kind == "none" || kind == "no_vocab") return std::move(result_);
  if (kind != "gpt2" && kind != "llama") {
    metadata_.fail("its tokenizer is of the kind '" + printable(kind) +
                       "'; supported are gpt2 (byte-level BPE) and llama (SentencePiece's BPE)" +
                       kAdvice,
                   ExitCode::kUnsupported);
  }
  read_tokens();
  read_types();
  count_model_tokens();
  read_special_ids();
  if (kind == "gpt2") {
    read_byte_level();
  } else {
    read_sentencepiece();
  }
  result_.info.present = true;
  return std::move(result_);
}

}  // namespace

HfTokenizer read_tokenizer(const GgufMetadata& metadata, const ModelConfig& config,
                           std::vector<std::string>& notes) {
  return TokenizerReader(metadata, config, notes).read();
}

}  // namespace edgellm::model_io::gguf
