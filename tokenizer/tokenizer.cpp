#include "tokenizer/tokenizer.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "tokenizer/added_tokens.h"
#include "tokenizer/bpe.h"
#include "tokenizer/decoder.h"
#include "tokenizer/json_node.h"
#include "tokenizer/normalizer.h"
#include "tokenizer/pretokenizer.h"
#include "tokenizer/tokenizer_file.h"
#include "tokenizer/unicode.h"
#include "tokenizer/vocabulary.h"

namespace edgellm {

namespace tok {

// The template of the post-processor: ids around those of the text.
struct Template {
  std::vector<int32_t> before, behind;
};

struct AddedTokens {
  AddedTokenMatcher raw;         // looked for in the text as it came
  AddedTokenMatcher normalized;  // looked for in the normalised rest
  AddedTokenMatcher as_written;  // the same tokens, before the normalizer
};

}  // namespace tok

using namespace tok;

namespace {

// Oniguruma counts in int, and NFC can make text three times as long.
constexpr size_t kMaxTextBytes = 512u << 20;

void check_version(const JsonNode& root) {
  const JsonNode version = root.find("version");
  if (!version.is_null() && version.string() != "1.0") {
    version.refuse("version " + in_quotes(version.string()), "\"1.0\"");
  }
}

// What makes a BPE model another kind of BPE than those of language models.
void check_model(const JsonNode& model) {
  const JsonNode type = model.find("type");
  if (!type.is_null() && type.string() != "BPE") {
    type.refuse("the model " + in_quotes(type.string()), "BPE");
  }
  const JsonNode dropout = model.find("dropout");
  if (!dropout.is_null() && !dropout.is_zero()) dropout.refuse("dropout", "null or 0");
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const JsonNode affix = model.find(key);
    if (!affix.is_null() && !affix.string().empty()) {
      affix.refuse(in_quotes(affix.string()), "null or \"\"");
    }
  }
}

void read_template(const JsonNode& node, const Vocabulary& vocabulary, Template& result) {
  const JsonNode pieces = node.at("single");
  std::vector<int32_t> before, behind;
  int n_sequences = 0;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const JsonNode piece = pieces.at(i);
    const JsonNode sequence = piece.find("Sequence");
    if (!sequence.is_null()) {
      if (sequence.at("id").string() != "A") {
        sequence.reject("expected the sequence \"A\", the only one of a single text");
      }
      ++n_sequences;
      continue;
    }
    const std::string& name = piece.at("SpecialToken").at("id").string();
    const JsonNode ids = node.at("special_tokens").at(name).at("ids");
    for (size_t k = 0; k < ids.size(); ++k) {
      const int32_t id = ids.at(k).id();
      if (vocabulary.find(id) == nullptr) {
        ids.at(k).reject("the vocabulary has no token " + std::to_string(id));
      }
      (n_sequences == 0 ? before : behind).push_back(id);
    }
  }
  if (n_sequences != 1) {
    pieces.reject("has the sequence \"A\" " + std::to_string(n_sequences) +
                  " times; expected it once");
  }
  // A template that comes later in a Sequence goes around those before it.
  result.before.insert(result.before.begin(), before.begin(), before.end());
  result.behind.insert(result.behind.end(), behind.begin(), behind.end());
  constexpr size_t kMaxIds = 1024;
  if (const size_t n_ids = result.before.size() + result.behind.size(); n_ids > kMaxIds) {
    node.refuse(std::to_string(n_ids) + " special tokens around a text",
                "up to " + std::to_string(kMaxIds));
  }
}

void read_post_processor(const JsonNode& node, const Vocabulary& vocabulary, size_t& n_steps,
                         Template& result) {
  if (node.is_null()) return;
  check_steps(++n_steps, node);
  const std::string& type = node.at("type").string();
  if (type == "TemplateProcessing") {
    read_template(node, vocabulary, result);
  } else if (type == "Sequence") {
    const JsonNode members = node.at("processors");
    for (size_t i = 0; i < members.size(); ++i) {
      read_post_processor(members.at(i), vocabulary, n_steps, result);
    }
  } else if (type != "ByteLevel") {  // ByteLevel moves offsets, never ids
    node.refuse("the post-processor " + in_quotes(type),
                "null, ByteLevel, TemplateProcessing, Sequence of these");
  }
}

// Sets what a token decodes to: what the decoder makes of it as it stands in encoded text.
void set_bytes(int32_t id, const Decoder& decoder, Vocabulary& vocabulary, std::string& scratch) {
  decoder.token_bytes(vocabulary[id].encoded, scratch);
  vocabulary.set_bytes(id, scratch);
}

// The vocabulary of the model, with room for the added tokens of the root's list.
Vocabulary make_vocabulary(TokenizerFile& file, const JsonNode& root, const Decoder& decoder) {
  const JsonNode model = root.at("model");
  if (!file.has_vocab) model.at("vocab").reject("expected an object of tokens and ids");
  const JsonNode added = root.find("added_tokens");
  const size_t n_tokens = file.vocab.size() + (added.is_null() ? 0 : added.size());
  const int32_t limit = Vocabulary::id_limit(n_tokens);
  size_t n_ids = n_tokens;  // added tokens are numbered from the size of the vocabulary on
  for (const auto& [content, id] : file.vocab) {
    if (id >= limit) {
      model.reject("vocab gives " + in_quotes(content) + " the id " + std::to_string(id) +
                   " in a " + "vocabulary of " + std::to_string(n_tokens) +
                   " tokens; expected ids below " + std::to_string(limit));
    }
    n_ids = std::max(n_ids, static_cast<size_t>(id) + 1);
  }
  Vocabulary vocabulary(std::move(file.vocab_text), n_ids, n_tokens);
  std::string scratch;
  for (const auto& [content, id] : file.vocab) {
    if (!vocabulary.add_view(content, id)) {
      model.reject("vocab gives " + in_quotes(content) + " the id " + std::to_string(id) +
                   ", but that token or that id appeared before");
    }
    set_bytes(id, decoder, vocabulary, scratch);
  }
  return vocabulary;
}

// Adds one entry of added_tokens to the vocabulary. Hugging Face's tokenizers do not take the
// number from the file: a token of the model keeps the model's id, others are counted from the size
// of the vocabulary on. A file whose numbers say otherwise would mean one thing there and another
// thing elsewhere, so it is refused.
AddedToken add_token(const JsonNode& node, Vocabulary& vocabulary, int32_t& next_id) {
  AddedToken token{node.at("content").string(),      node.at("id").id(),
                   node.at("single_word").boolean(), node.at("lstrip").boolean(),
                   node.at("rstrip").boolean(),      node.at("normalized").boolean(),
                   node.at("special").boolean()};
  if (token.content.size() > AddedTokenMatcher::kMaxTokenBytes) {
    node.refuse("a content of " + std::to_string(token.content.size()) + " bytes",
                "up to " + std::to_string(AddedTokenMatcher::kMaxTokenBytes) + " bytes");
  }
  const int32_t known = vocabulary.id_of(token.content);
  const int32_t expected = known >= 0 ? known : next_id;
  if (token.id != expected) {
    node.reject(in_quotes(token.content) + " has the id " + std::to_string(token.id) +
                "; expected " + std::to_string(expected) +
                (known >= 0 ? ", its id in the vocabulary" : ", the next after the vocabulary"));
  }
  if (known < 0) {
    if (!vocabulary.add_copy(token.content, token.id)) {
      node.reject("the id " + std::to_string(token.id) + " is taken by another token");
    }
    ++next_id;
  }
  if (token.special) vocabulary[token.id].special = true;
  return token;
}

AddedTokens read_added_tokens(const JsonNode& list, size_t n_model_tokens,
                              const Normalizer& normalizer, const Decoder& decoder,
                              Vocabulary& vocabulary) {
  AddedTokens result;
  if (list.is_null()) return result;
  std::vector<AddedToken> raw, normalized, as_written;
  StringIndex seen, seen_normalized;
  std::string encoded, scratch;
  auto next_id = static_cast<int32_t>(n_model_tokens);
  for (size_t i = 0; i < list.size(); ++i) {
    const JsonNode node = list.at(i);
    if (node.at("content").string().empty()) continue;  // as Hugging Face's tokenizers do
    AddedToken token = add_token(node, vocabulary, next_id);
    // Views into the vocabulary are stable, those into `token` are not.
    if (!seen.insert(vocabulary.find(token.id)->content, token.id)) {
      node.reject(in_quotes(token.content) + " appeared before");
    }
    if (token.normalized) {
      as_written.push_back(token);
      if (normalizer.apply(token.content, encoded)) {
        token.content = encoded;
        vocabulary.set_encoded(token.id, encoded);
      }
      if (token.content.empty() || token.content.size() > AddedTokenMatcher::kMaxTokenBytes) {
        node.reject("the normalizer makes " + std::to_string(token.content.size()) +
                    " bytes of it; expected 1 to " +
                    std::to_string(AddedTokenMatcher::kMaxTokenBytes));
      }
      if (!seen_normalized.insert(vocabulary.find(token.id)->encoded, token.id)) {
        node.reject("the normalizer makes " + in_quotes(token.content) +
                    " of it, as of another added token");
      }
    }
    set_bytes(token.id, decoder, vocabulary, scratch);
    (token.normalized ? normalized : raw).push_back(std::move(token));
  }
  result.raw = AddedTokenMatcher(std::move(raw));
  result.normalized = AddedTokenMatcher(std::move(normalized));
  result.as_written = AddedTokenMatcher(std::move(as_written));
  return result;
}

Bpe::Options bpe_options(const JsonNode& model, bool byte_level, const Vocabulary& vocabulary) {
  Bpe::Options options;
  options.byte_level = byte_level;
  options.ignore_merges = model.find("ignore_merges").boolean_or(false);
  options.byte_fallback = !byte_level && model.find("byte_fallback").boolean_or(false);
  options.fuse_unk = model.find("fuse_unk").boolean_or(false);
  const JsonNode unk = model.find("unk_token");
  // A token that the vocabulary lacks can do no harm before something is unknown.
  if (!unk.is_null()) options.unk_id = vocabulary.id_of(unk.string());
  return options;
}

// With a token for every byte nothing is unknown; without one these would take effect inside
// characters.
void check_byte_level(const JsonNode& model, bool byte_level, const Bpe& bpe) {
  if (!byte_level || bpe.covers_utf8()) return;
  for (const char* key : {"unk_token", "byte_fallback"}) {
    const JsonNode node = model.find(key);
    const bool has_no_effect = node.is_null() || (node.is_boolean() && !node.boolean());
    if (has_no_effect) continue;
    node.refuse("this in a byte-level vocabulary that lacks bytes",
                "a vocabulary with a token for every byte, or this left out");
  }
}

}  // namespace

struct Tokenizer::Impl {
  Vocabulary vocabulary;
  Bpe bpe;
  Normalizer normalizer;
  AddedTokens added;
  PreTokenizer pre_tokenizer;
  Decoder decoder;
  Template special;

  // `at_start`: nothing stands before `text`.
  void encode_normalized(std::string_view text, bool at_start,
                         const AddedTokenMatcher::Counts& counts, PreTokenizer::Scratch& scratch,
                         Bpe::Scratch& bpe_scratch, std::vector<int32_t>& ids) const {
    std::vector<Section> sections;
    std::vector<std::string_view> words;
    added.normalized.split(text, sections, counts);
    for (const Section& section : sections) {
      if (section.id != Section::kText) {
        ids.push_back(section.id);
        continue;
      }
      const bool is_first = at_start && section.text.data() == text.data();
      pre_tokenizer.split(section.text, is_first, scratch, words);
      for (const std::string_view word : words) bpe.encode(word, bpe_scratch, ids);
    }
  }

  void encode(std::string_view text, std::span<const TextRange> plain,
              std::vector<int32_t>& ids) const {
    PreTokenizer::Scratch scratch;
    Bpe::Scratch bpe_scratch(text.size());
    std::vector<Section> sections;
    added.raw.split(text, sections, outside(plain, 0));
    for (const Section& section : sections) {
      if (section.id != Section::kText) {
        ids.push_back(section.id);
        continue;
      }
      std::string_view piece = section.text;
      const bool at_start = piece.data() == text.data();
      const auto offset = static_cast<size_t>(piece.data() - text.data());
      auto counts = outside(plain, offset);
      // The scratch keeps the normalised text: cached words are views of it.
      std::string normalized;
      if (normalizer.apply(piece, normalized)) {
        if (counts) counts = after_normalizing(piece, offset, plain, normalized);
        piece = scratch.rewritten.emplace_back(std::move(normalized));
      }
      encode_normalized(piece, at_start, counts, scratch, bpe_scratch, ids);
    }
  }

  // True for tokens without a byte in `plain`, in a text that begins at `offset` of the one that
  // `plain` is about. Empty where there is nothing to ask.
  static AddedTokenMatcher::Counts outside(std::span<const TextRange> plain, size_t offset) {
    if (plain.empty()) return {};
    return [plain, offset](const AddedToken& token, size_t begin) {
      begin += offset;
      const auto range = std::upper_bound(plain.begin(), plain.end(), begin,
                                          [](size_t at, const TextRange& r) { return at < r.end; });
      return range == plain.end() || begin + token.content.size() <= range->begin;
    };
  }

  // outside() for a text that was normalised to `normalized`: places have moved. Where nothing in
  // `plain` becomes a token all tokens count. Otherwise those that are found must be those that
  // were written, one by one, and the n-th counts if it did before; if they are not, none counts.
  AddedTokenMatcher::Counts after_normalizing(std::string_view text, size_t offset,
                                              std::span<const TextRange> plain,
                                              std::string_view normalized) const {
    std::vector<Section> sections;
    bool plain_has_tokens = false;
    const auto notice = [&](const AddedToken&, size_t) { return plain_has_tokens = true; };
    for (const TextRange& range : plain) {
      const size_t begin = std::max(range.begin, offset);
      const size_t end = std::min(range.end, offset + text.size());
      if (begin >= end) continue;
      const std::string_view part = text.substr(begin - offset, end - begin);
      std::string normalized_part;
      added.normalized.split(normalizer.apply(part, normalized_part) ? normalized_part : part,
                             sections, notice);
    }
    if (!plain_has_tokens) return {};

    struct Found {
      int32_t id;
      bool counts;
    };
    auto written = std::make_shared<std::vector<Found>>();
    added.as_written.split(
        text, sections,
        [&, counts = outside(plain, offset)](const AddedToken& token, size_t begin) {
          written->push_back({token.id, counts(token, begin)});
          return written->back().counts;
        });
    size_t next = 0;
    bool same = true;
    added.normalized.split(normalized, sections, [&](const AddedToken& token, size_t) {
      same = same && next < written->size() && (*written)[next].id == token.id;
      return same && (*written)[next++].counts;
    });
    if (!same || next != written->size()) return [](const AddedToken&, size_t) { return false; };
    return [written, n = size_t{0}](const AddedToken&, size_t) mutable {
      return (*written)[n++].counts;
    };
  }
};

Tokenizer Tokenizer::from_json(std::string_view json, const std::string& where) {
  TokenizerFile file = read_tokenizer_file(json, where);
  const JsonNode root(file.rest, where);
  // "truncation" and "padding" are left alone: they are settings of the program that wrote the
  // file, and an engine must not cut or lengthen a prompt behind its user's back.
  check_version(root);
  const JsonNode model = root.at("model");
  check_model(model);
  Normalizer normalizer(root.find("normalizer"));
  PreTokenizer pre_tokenizer(root.find("pre_tokenizer"));
  Decoder decoder(root.find("decoder"), pre_tokenizer.is_byte_level());

  const size_t n_model_tokens = file.vocab.size();
  Vocabulary vocabulary = make_vocabulary(file, root, decoder);
  if (!file.has_merges) model.at("merges").reject("expected an array of merges");
  Bpe bpe(vocabulary, file.merges, bpe_options(model, pre_tokenizer.is_byte_level(), vocabulary),
          where + ": model.merges");
  check_byte_level(model, pre_tokenizer.is_byte_level(), bpe);
  AddedTokens added =
      read_added_tokens(root.find("added_tokens"), n_model_tokens, normalizer, decoder, vocabulary);
  Template special;
  size_t n_steps = 0;
  read_post_processor(root.find("post_processor"), vocabulary, n_steps, special);

  return Tokenizer(std::unique_ptr<const Impl>(
      new Impl{std::move(vocabulary), std::move(bpe), std::move(normalizer), std::move(added),
               std::move(pre_tokenizer), std::move(decoder), std::move(special)}));
}

Tokenizer::Tokenizer(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

namespace {

void check_text(std::string_view text) {
  if (text.size() > kMaxTextBytes) {
    throw Error(ExitCode::kUsage, "the text has " + std::to_string(text.size()) +
                                      " bytes; expected at most " + std::to_string(kMaxTextBytes) +
                                      ": give it in parts");
  }
  const size_t invalid = find_invalid_utf8(text);
  if (invalid != std::string_view::npos) {
    throw Error(ExitCode::kUsage, "the text is not valid UTF-8 at byte " + std::to_string(invalid) +
                                      "; convert it first, for example with iconv -t UTF-8");
  }
}

}  // namespace

std::vector<int32_t> Tokenizer::encode(std::string_view text, bool add_special) const {
  check_text(text);
  std::vector<int32_t> ids;
  ids.reserve(text.size() / 3);  // a little more than English takes
  const Template& special = impl_->special;
  if (add_special) ids = special.before;
  impl_->encode(text, {}, ids);
  if (add_special) ids.insert(ids.end(), special.behind.begin(), special.behind.end());
  return ids;
}

std::vector<int32_t> Tokenizer::encode(std::string_view text,
                                       std::span<const TextRange> plain) const {
  check_text(text);
  std::vector<int32_t> ids;
  ids.reserve(text.size() / 3);
  impl_->encode(text, plain, ids);
  return ids;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  std::string bytes;
  DecodeState state;
  for (const int32_t id : ids) {
    if (!skip_special || !is_special(id)) decode_next(id, state, bytes);
  }
  decode_end(state, bytes);
  return bytes;
}

void Tokenizer::decode_next(int32_t id, DecodeState& state, std::string& out) const {
  const Token* token = impl_->vocabulary.find(id);
  if (token != nullptr) impl_->decoder.push(token->encoded, state, out);
}

void Tokenizer::decode_end(DecodeState& state, std::string& out) const {
  impl_->decoder.finish(state, out);
}

std::string_view Tokenizer::token_bytes(int32_t id) const {
  const Token* token = impl_->vocabulary.find(id);
  return token == nullptr ? std::string_view() : token->bytes;
}

bool Tokenizer::is_special(int32_t id) const {
  const Token* token = impl_->vocabulary.find(id);
  return token != nullptr && token->special;
}

int32_t Tokenizer::max_id() const { return impl_->vocabulary.max_id(); }

}  // namespace edgellm
