#include "model/import/gguf/pre_tokenizers.h"

#include <array>

namespace edgellm::model_io::gguf {
namespace {

enum class Words {
  kGpt2,     // ByteLevel with its own pattern
  kDefault,  // llama.cpp's, where a file names none
  kFalcon,
  kDigitsThenGpt2,  // single digits, then GPT-2
  kLlama3,
  kQwen2,   // LLaMA-3's with single digits
  kQwen35,  // Qwen2's with combining marks
  kTekken,
  kGpt4o,
  kDeepSeek3,
  kBloom,
};

struct Name {
  const char* name;
  Words words;
  bool nfc = false;
  bool ignore_merges = false;
  bool add_bos = false;
};
constexpr std::array kNames = {
    Name{"default", Words::kDefault},
    Name{"llama-bpe", Words::kLlama3, false, true, true},
    Name{"llama3", Words::kLlama3, false, true, true},
    Name{"llama-v3", Words::kLlama3, false, true, true},
    Name{"falcon3", Words::kLlama3, false, true, true},
    Name{"falcon_e", Words::kLlama3, false, true, true},  // Microsoft's fork
    Name{"falcon-h1", Words::kLlama3, false, true, true},
    Name{"pixtral", Words::kLlama3, false, true, true},
    Name{"lfm2", Words::kLlama3, false, true, true},
    Name{"dbrx", Words::kLlama3},
    Name{"smaug-bpe", Words::kLlama3},
    Name{"glm4", Words::kLlama3},
    Name{"chatglm-bpe", Words::kLlama3},
    Name{"qwen2", Words::kQwen2, true},
    Name{"deepseek-r1-qwen", Words::kQwen2, true},
    Name{"megrez", Words::kQwen2, true},
    Name{"hunyuan", Words::kQwen2},
    Name{"stablelm2", Words::kQwen2},
    Name{"qwen35", Words::kQwen35, true},
    Name{"gpt-2", Words::kGpt2},
    Name{"phi-2", Words::kGpt2},
    Name{"gigachat", Words::kGpt2},
    Name{"mpt", Words::kGpt2, true},   // GPT-NeoX's tokenizer
    Name{"olmo", Words::kGpt2, true},  // the same
    Name{"exaone4", Words::kGpt2},
    Name{"smollm", Words::kDigitsThenGpt2},
    Name{"starcoder", Words::kDigitsThenGpt2},
    Name{"refact", Words::kDigitsThenGpt2},
    Name{"command-r", Words::kDigitsThenGpt2, true},
    Name{"codeshell", Words::kDigitsThenGpt2},
    Name{"exaone", Words::kDigitsThenGpt2},
    Name{"minerva-7b", Words::kDigitsThenGpt2},
    Name{"falcon", Words::kFalcon},
    Name{"tekken", Words::kTekken, false, true, true},
    Name{"gpt-4o", Words::kGpt4o},
    Name{"llama4", Words::kGpt4o},
    Name{"deepseek-v3", Words::kDeepSeek3},
    Name{"bloom", Words::kBloom},
};

// The patterns are those of the models' tokenizer.json files.
constexpr const char* kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr const char* kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kQwen35Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kTekkenPattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kGpt4oPattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kDeepSeek3Words =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kBloomPattern = " ?[^(\\s|.,!?…。，、।۔،)]+";

Json split(const char* pattern) {
  return {{"type", "Split"},
          {"pattern", {{"Regex", pattern}}},
          {"behavior", "Isolated"},
          {"invert", false}};
}

Json byte_level(bool use_regex) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", false},
          {"trim_offsets", true},
          {"use_regex", use_regex}};
}

Json digits(bool individual) { return {{"type", "Digits"}, {"individual_digits", individual}}; }

Json steps_of(Words words) {
  switch (words) {
    case Words::kGpt2:
      return Json::array({byte_level(true)});
    case Words::kDefault:
      return Json::array({split(R"([\p{P}\$\+<=>\^~\|]+)"), split(kGpt2Pattern), split(R"(\p{N}+)"),
                          split("[0-9][0-9][0-9]"), byte_level(false)});
    case Words::kFalcon:
      return Json::array({{{"type", "Punctuation"}, {"behavior", "Contiguous"}},
                          byte_level(true),
                          digits(false),
                          split("[0-9][0-9][0-9]")});
    case Words::kDigitsThenGpt2:
      return Json::array({digits(true), byte_level(true)});
    case Words::kLlama3:
      return Json::array({split(kLlama3Pattern), byte_level(false)});
    case Words::kQwen2:
      return Json::array({split(kQwen2Pattern), byte_level(false)});
    case Words::kQwen35:
      return Json::array({split(kQwen35Pattern), byte_level(false)});
    case Words::kTekken:
      return Json::array({split(kTekkenPattern), byte_level(false)});
    case Words::kGpt4o:
      return Json::array({split(kGpt4oPattern), byte_level(false)});
    case Words::kDeepSeek3:
      return Json::array({split(R"(\p{N}{1,3})"), split("[一-龥぀-ゟ゠-ヿ]+"),
                          split(kDeepSeek3Words), byte_level(false)});
    case Words::kBloom:
      return Json::array({split(kBloomPattern), byte_level(false)});
  }
  return nullptr;
}

}  // namespace

std::optional<PreTokenizerKind> find_pre_tokenizer(std::string_view name) {
  for (const Name& known : kNames) {
    if (name != known.name) continue;
    return PreTokenizerKind{{{"type", "Sequence"}, {"pretokenizers", steps_of(known.words)}},
                            known.nfc ? Json{{"type", "NFC"}} : Json(nullptr),
                            known.ignore_merges,
                            known.add_bos};
  }
  return std::nullopt;
}

}  // namespace edgellm::model_io::gguf
