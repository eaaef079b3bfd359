#include "tokenizer/tokenizer_file.h"

#include <limits>

#include "base/error.h"
#include "tokenizer/json_node.h"

namespace edgellm::tok {

namespace {

using nlohmann::json;

// Real files nest eight deep. The limit keeps recursion over the tree (Sequence in Sequence) small.
constexpr size_t kMaxDepth = 64;

class Reader : public nlohmann::json_sax<json> {
 public:
  Reader(TokenizerFile& file, const std::string& where) : file_(file), where_(where) {}

  bool null() override { return scalar(nullptr); }
  bool boolean(bool value) override { return scalar(value); }
  bool number_float(number_float_t value, const string_t&) override { return scalar(value); }
  bool number_integer(number_integer_t value) override { return scalar(value); }
  bool number_unsigned(number_unsigned_t value) override {
    if (table_ != Table::kVocab) return scalar(value);
    if (value > static_cast<number_unsigned_t>(std::numeric_limits<int32_t>::max())) {
      bad_vocab("has the id " + std::to_string(value));
    }
    file_.vocab.push_back({vocab_key_, static_cast<int32_t>(value)});
    return true;
  }
  bool string(string_t& value) override {
    switch (table_) {
      case Table::kMerges:
        add_merge(value);
        return true;
      case Table::kMergePair:
        if (n_pair_ == 2) bad_merge("has more than two parts");
        pair_[n_pair_++] = file_.merge_text.add(value);
        return true;
      default:
        return scalar(std::move(value));
    }
  }
  bool binary(binary_t&) override { return false; }  // JSON text has none

  bool start_object(size_t) override {
    // The parents' table and depth say where we are: {"model": {"vocab": {
    if (table_ == Table::kNone && at_model_member("vocab")) {
      if (file_.has_vocab) fail("model.vocab: appears twice");
      file_.has_vocab = true;
      table_ = Table::kVocab;
      return true;
    }
    return start(json::object());
  }
  bool key(string_t& key) override {
    if (table_ == Table::kVocab) {
      vocab_key_ = file_.vocab_text.add(key);
    } else {
      key_ = std::move(key);
    }
    return true;
  }
  bool end_object() override { return end(); }

  bool start_array(size_t) override {
    if (table_ == Table::kMerges) {
      table_ = Table::kMergePair;
      n_pair_ = 0;
      return true;
    }
    if (table_ == Table::kNone && at_model_member("merges")) {
      if (file_.has_merges) fail("model.merges: appears twice");
      file_.has_merges = true;
      table_ = Table::kMerges;
      return true;
    }
    return start(json::array());
  }
  bool end_array() override {
    if (table_ != Table::kMergePair) return end();
    if (n_pair_ != 2) bad_merge("has fewer than two parts");
    file_.merges.push_back({pair_[0], pair_[1]});
    table_ = Table::kMerges;
    return true;
  }

  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    fail("not valid JSON (UTF-8): error at byte " + std::to_string(position) +
         "; the file is damaged or not a tokenizer.json");
  }

 private:
  enum class Table { kNone, kVocab, kMerges, kMergePair };

  [[noreturn]] void fail(const std::string& what) const {
    throw Error(ExitCode::kModelFile, where_ + ": " + what);
  }
  [[noreturn]] void bad_vocab(const std::string& what) const {
    fail("model.vocab: " + in_quotes(vocab_key_) + " " + what +
         "; expected an id of 0 to 2147483647");
  }
  [[noreturn]] void bad_merge(const std::string& what) const {
    fail("model.merges[" + std::to_string(file_.merges.size()) + "]: " + what +
         "; expected \"LEFT RIGHT\" or [\"LEFT\", \"RIGHT\"]");
  }

  bool at_model_member(const char* name) const {
    return open_.size() == 2 && open_[0]->is_object() && open_[1]->is_object() &&
           open_[1] == model_ && key_ == name;
  }

  void add_merge(const std::string& text) {
    // The comment line of a merges.txt, which some converters carried along.
    if (text.starts_with("#version")) return;
    const size_t space = text.find(' ');
    if (space == std::string::npos) bad_merge("has no space in " + in_quotes(text));
    if (text.find(' ', space + 1) != std::string::npos) {
      bad_merge("has more than one space in " + in_quotes(text));
    }
    const std::string_view kept = file_.merge_text.add(text);
    file_.merges.push_back({kept.substr(0, space), kept.substr(space + 1)});
  }

  // Puts a value where the tree is growing and returns its place.
  json* put(json value) {
    if (open_.empty()) {
      file_.rest = std::move(value);
      return &file_.rest;
    }
    json& parent = *open_.back();
    if (parent.is_array()) {
      parent.push_back(std::move(value));
      return &parent.back();
    }
    // As every JSON reader that this file meets, let the last of equal keys win.
    json& member = parent[key_];
    member = std::move(value);
    if (open_.size() == 1 && key_ == "model") model_ = &member;
    return &member;
  }

  bool scalar(json value) {
    switch (table_) {
      case Table::kVocab:
        bad_vocab("has no valid id");
      case Table::kMerges:
      case Table::kMergePair:
        bad_merge("is not made of strings");
      case Table::kNone:
        break;
    }
    put(std::move(value));
    return true;
  }

  bool start(json empty) {
    if (table_ == Table::kVocab) bad_vocab("has no valid id");
    if (table_ != Table::kNone) bad_merge("is not made of strings");
    if (open_.size() == kMaxDepth) fail("nested more than 64 deep; expected a tokenizer.json");
    open_.push_back(put(std::move(empty)));
    return true;
  }

  bool end() {
    if (table_ != Table::kNone) {
      table_ = Table::kNone;
    } else {
      open_.pop_back();
    }
    return true;
  }

  TokenizerFile& file_;
  const std::string& where_;
  Table table_ = Table::kNone;
  std::vector<json*> open_;      // the containers we are inside of, outermost first
  const json* model_ = nullptr;  // the root's member "model"
  std::string key_;              // the last key of the tree
  std::string_view vocab_key_;   // the last key of model.vocab
  std::string_view pair_[2];
  size_t n_pair_ = 0;
};

}  // namespace

TokenizerFile read_tokenizer_file(std::string_view json_text, const std::string& where) {
  TokenizerFile file;
  Reader reader(file, where);
  json::sax_parse(json_text.begin(), json_text.end(), &reader);
  return file;
}

}  // namespace edgellm::tok
