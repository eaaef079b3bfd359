#include "model/import/hf_tokenizer.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "base/text.h"

namespace edgellm::model_io {
namespace {

constexpr uint64_t kMaxTokenizerBytes = uint64_t{256} << 20;
constexpr uint64_t kMaxSmallFileBytes = uint64_t{16} << 20;

// Chat models end a turn with one of these, and some name only another one as their EOS
// (BitNet-2B: three files, two answers). They count where the tokenizer has them as special tokens
// and the chat template writes them.
constexpr std::array kTurnTerminators = {"<|eot_id|>",   "<|im_end|>",      "<end_of_turn>",
                                         "<|end|>",      "<|end_of_turn|>", "<|end_of_text|>",
                                         "<|endoftext|>"};

constexpr std::array kSamplingKeys = {"do_sample", "temperature", "top_k",
                                      "top_p",     "min_p",       "repetition_penalty"};

// What transformers hands to a chat template by these names.
constexpr std::array kTokenNames = {"bos_token", "eos_token", "unk_token", "sep_token",
                                    "pad_token", "cls_token", "mask_token"};

class TokenizerReader {
 public:
  TokenizerReader(const HfTokenizerFiles& files, const ModelConfig& config)
      : files_(files), config_(config) {}

  HfTokenizer read();

 private:
  // An empty object where the folder has no such file.
  Json read_json(const std::string& name) const;
  void read_tokenizer_json();
  void refuse_sentencepiece() const;
  void read_added_tokens(const Json& tokenizer_config);
  std::optional<int64_t> id_of(const std::string& token) const;
  void add_stop_ids(const Json& json, const std::string& file);
  void add_stop_token(const Json& json);
  void read_bos(const std::vector<const Json*>& token_files,
                const std::vector<std::pair<const Json*, std::string>>& id_files);
  std::string chat_template(const Json& tokenizer_config) const;
  bool in_vocabulary(int64_t id) const { return id >= 0 && id < config_.vocab; }

  const HfTokenizerFiles& files_;
  const ModelConfig& config_;
  HfTokenizer result_;
  std::map<std::string, int64_t> ids_;    // every token of the tokenizer
  std::set<std::string> special_tokens_;  // those that are added and special
  std::set<int32_t> stop_ids_;
};

Json TokenizerReader::read_json(const std::string& name) const {
  const std::string path = files_.path_of(name);
  if (!path_exists(path)) return Json::object();
  return parse_json_object(read_text_file(path, kMaxSmallFileBytes), {path});
}

// Otherwise a model whose only tokenizer is one that we cannot read would become a file that takes
// no text, without a word about the reason.
void TokenizerReader::refuse_sentencepiece() const {
  const std::string path = files_.path_of("tokenizer.model");
  if (!path_exists(path)) return;
  throw Error(ExitCode::kUnsupported,
              printable_path(path) +
                  ": SentencePiece's own files are not supported; put the tokenizer.json of the "
                  "same model beside it (transformers' AutoTokenizer writes one with "
                  "save_pretrained), or move it away for a file that takes ids only");
}

void TokenizerReader::read_tokenizer_json() {
  const std::string path = files_.path_of("tokenizer.json");
  if (!path_exists(path)) {
    refuse_sentencepiece();
    return;
  }
  result_.tokenizer_json = read_text_file(path, kMaxTokenizerBytes);
  if (result_.tokenizer_json.empty()) fail_file(path, "is empty");
  // Merges are the larger half of the file, and only the tokenizer itself needs them.
  const auto without_merges = [](int depth, const std::string& key) {
    return !(depth == 2 && key == "merges");
  };
  const Json json = parse_json_object(result_.tokenizer_json, {path}, without_merges);
  const Fields fields(json, {path});
  const Fields model = fields.object("model");
  const Json& vocab = model.get("vocab");
  int64_t id = 0;
  if (vocab.is_object()) {
    for (const auto& [token, value] : vocab.items()) {
      if (integer_in(value, 0, INT32_MAX, id)) ids_[token] = id;
    }
  } else if (vocab.is_array()) {  // Unigram: a list of [token, score]
    for (const Json& entry : vocab) {
      if (entry.is_array() && !entry.empty() && entry[0].is_string()) {
        ids_[entry[0].get<std::string>()] = id;
      }
      ++id;
    }
  }
  if (!fields.has("added_tokens")) return;
  for (const Json& entry : fields.array("added_tokens")) {
    const Fields token(entry, {path, "added_tokens"});
    ids_[token.text("content")] = token.integer("id", 0, INT32_MAX);
    if (token.has("special") && token.boolean("special")) {
      special_tokens_.insert(token.text("content"));
    }
  }
}

// Without a tokenizer.json the ids of special tokens may still stand in tokenizer_config.json.
void TokenizerReader::read_added_tokens(const Json& tokenizer_config) {
  const auto tokens = tokenizer_config.find("added_tokens_decoder");
  if (tokens == tokenizer_config.end() || !tokens->is_object()) return;
  for (const auto& [id_text, entry] : tokens->items()) {
    const bool is_number = !id_text.empty() && id_text.size() < 10 &&
                           id_text.find_first_not_of("0123456789") == std::string::npos;
    if (!is_number || !entry.is_object() || !entry.contains("content")) continue;
    if (entry["content"].is_string()) {
      ids_.emplace(entry["content"].get<std::string>(), std::stoll(id_text));
    }
  }
}

std::optional<int64_t> TokenizerReader::id_of(const std::string& token) const {
  const auto it = ids_.find(token);
  if (it == ids_.end()) return std::nullopt;
  return it->second;
}

void TokenizerReader::add_stop_ids(const Json& json, const std::string& file) {
  const auto found = json.find("eos_token_id");
  if (found == json.end() || found->is_null()) return;
  const Json list = found->is_array() ? *found : Json::array({*found});
  for (const Json& value : list) {
    int64_t id = 0;
    if (!integer_in(value, 0, config_.vocab - 1, id)) {
      fail_in_file(files_.path_of(file), "eos_token_id is " + value_text(value) +
                                             ", expected ids from 0 to " +
                                             std::to_string(config_.vocab - 1));
    }
    stop_ids_.insert(static_cast<int32_t>(id));
  }
}

// A special token as these files write it: "</s>" or {"content": "</s>", ...}.
std::optional<std::string> token_text(const Json& json, const char* key) {
  const auto found = json.find(key);
  if (found == json.end()) return std::nullopt;
  if (found->is_string()) return found->get<std::string>();
  if (found->is_object() && found->contains("content") && (*found)["content"].is_string()) {
    return (*found)["content"].get<std::string>();
  }
  return std::nullopt;
}

void TokenizerReader::add_stop_token(const Json& json) {
  const auto token = token_text(json, "eos_token");
  const auto id = token ? id_of(*token) : std::nullopt;
  // A token beyond the model's vocabulary is never generated.
  if (id && in_vocabulary(*id)) stop_ids_.insert(static_cast<int32_t>(*id));
}

// The tokenizer's own BOS is what transformers puts before a text; the id files are asked where it
// names none.
void TokenizerReader::read_bos(const std::vector<const Json*>& token_files,
                               const std::vector<std::pair<const Json*, std::string>>& id_files) {
  for (const Json* json : token_files) {
    const auto token = token_text(*json, "bos_token");
    const auto id = token ? id_of(*token) : std::nullopt;
    if (!id || !in_vocabulary(*id)) continue;
    result_.info.bos = static_cast<int32_t>(*id);
    return;
  }
  for (const auto& [json, file] : id_files) {
    const auto found = json->find("bos_token_id");
    if (found == json->end() || found->is_null()) continue;
    int64_t id = 0;
    if (!integer_in(*found, 0, config_.vocab - 1, id)) {
      fail_in_file(files_.path_of(file), "bos_token_id is " + value_text(*found) +
                                             ", expected an id from 0 to " +
                                             std::to_string(config_.vocab - 1));
    }
    result_.info.bos = static_cast<int32_t>(id);
    return;
  }
}

std::string TokenizerReader::chat_template(const Json& tokenizer_config) const {
  const std::string jinja_path = files_.path_of("chat_template.jinja");
  if (path_exists(jinja_path)) {
    std::string text = read_text_file(jinja_path, kMaxSmallFileBytes);
    if (!is_utf8(text)) fail_file(jinja_path, "is not UTF-8 text");
    return text;
  }
  const auto found = tokenizer_config.find("chat_template");
  if (found == tokenizer_config.end() || found->is_null()) return "";
  if (found->is_string()) return found->get<std::string>();
  const std::string path = files_.path_of("tokenizer_config.json");
  if (!found->is_array()) fail_in_file(path, "chat_template is neither a string nor a list");
  for (const Json& entry : *found) {
    const Fields named(entry, {path, "chat_template"});
    if (named.text("name") == "default") return named.text("template");
  }
  fail_in_file(path, "chat_template is a list without one named 'default'");
}

HfTokenizer TokenizerReader::read() {
  const Json config = read_json("config.json");
  const Json generation = read_json("generation_config.json");
  const Json tokenizer_config = read_json("tokenizer_config.json");
  const Json special_tokens = read_json("special_tokens_map.json");
  read_tokenizer_json();
  read_added_tokens(tokenizer_config);

  TokenizerInfo& info = result_.info;
  info.present = !result_.tokenizer_json.empty();
  info.chat_template = chat_template(tokenizer_config);

  add_stop_ids(generation, "generation_config.json");
  add_stop_ids(config, "config.json");
  add_stop_token(tokenizer_config);
  add_stop_token(special_tokens);
  for (const std::string& token : special_tokens_) {
    const auto id = id_of(token);
    if (id && in_vocabulary(*id) && ends_turn(token, info.chat_template)) {
      stop_ids_.insert(static_cast<int32_t>(*id));
    }
  }
  info.stop_ids.assign(stop_ids_.begin(), stop_ids_.end());
  info.special_tokens.emplace();
  for (const char* name : kTokenNames) {
    for (const Json* json : {&tokenizer_config, &special_tokens}) {
      const auto token = token_text(*json, name);
      if (token) info.special_tokens->emplace(name, *token);  // the first counts
    }
  }

  read_bos({&tokenizer_config, &special_tokens},
           {{&config, "config.json"}, {&generation, "generation_config.json"}});
  const Fields flags(tokenizer_config, {files_.path_of("tokenizer_config.json")});
  info.add_bos = flags.has("add_bos_token") && flags.boolean("add_bos_token");
  if (info.add_bos && !info.bos) flags.fail("add_bos_token is true, but no bos_token is named");

  Json sampling = Json::object();
  for (const char* key : kSamplingKeys) {
    const auto found = generation.find(key);
    if (found == generation.end() || found->is_null()) continue;
    if (!found->is_number() && !found->is_boolean()) {
      fail_in_file(files_.path_of("generation_config.json"),
                   std::string(key) + " is " + value_text(*found) + ", expected a number");
    }
    sampling[key] = *found;
  }
  info.sampling_json = sampling.dump();
  return std::move(result_);
}

}  // namespace

bool ends_turn(const std::string& token, const std::string& chat_template) {
  return std::find(kTurnTerminators.begin(), kTurnTerminators.end(), token) !=
             kTurnTerminators.end() &&
         chat_template.find(token) != std::string::npos;
}

HfTokenizerFiles HfTokenizerFiles::of_folder(const std::string& folder) {
  return {folder, folder + "/tokenizer.json", folder + "/config.json"};
}

std::string HfTokenizerFiles::path_of(const std::string& name) const {
  if (name == "tokenizer.json") return tokenizer_json;
  if (name == "config.json") return config_json;
  return folder.empty() ? "" : folder + "/" + name;
}

HfTokenizer read_hf_tokenizer(const HfTokenizerFiles& files, const ModelConfig& config) {
  return TokenizerReader(files, config).read();
}

}  // namespace edgellm::model_io
