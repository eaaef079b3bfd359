// Chat templates of published models against what transformers makes of the same conversations:
// text and ids. tests/data/chat/README.md says how the goldens were made.
#include <algorithm>
#include <catch2/catch.hpp>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "model/model_file.h"
#include "tokenizer/chat_template.h"

namespace edgellm {
namespace {

using Json = nlohmann::json;

const std::string kFolder = EDGELLM_SOURCE_DIR "/tests/data/chat/";

Json read_json(const std::string& name) {
  std::ifstream file(kFolder + name);
  return Json::parse(file);
}

std::tm time_of(const std::string& iso) {
  std::tm time = {};
  REQUIRE(strptime(iso.c_str(), "%Y-%m-%dT%H:%M:%S", &time) != nullptr);
  return time;
}

// The demo model's tokenizer with more special tokens.
Tokenizer tokenizer_with(const std::vector<std::string>& special) {
  const ModelFile model = ModelFile::open(EDGELLM_SOURCE_DIR "/model/demo/storyteller.tmac2");
  auto json = nlohmann::ordered_json::parse(model.tokenizer_json());
  auto& added = json["added_tokens"];
  const auto is_known = [&](const std::string& token) {
    return std::any_of(added.begin(), added.end(), [&](const auto& entry) {
      return entry["content"].template get<std::string>() == token;
    });
  };
  int id = model.config().vocab;
  for (const std::string& token : special) {
    if (is_known(token)) continue;
    auto entry = added.back();
    entry["content"] = token;
    entry["id"] = id++;
    added.push_back(entry);
  }
  return Tokenizer::from_json(json.dump(), "tokenizer.json");
}

std::vector<ChatMessage> messages_of(const Json& json) {
  std::vector<ChatMessage> messages;
  for (const Json& message : json)
    messages.push_back({message["role"].get<std::string>(), message["content"].get<std::string>()});
  return messages;
}

ChatTemplate::SpecialTokens special_tokens_of(const Json& spec) {
  ChatTemplate::SpecialTokens tokens;
  for (const char* name : {"bos_token", "eos_token"}) {
    if (!spec[name].is_null()) tokens.emplace_back(name, spec[name].get<std::string>());
  }
  return tokens;
}

TEST_CASE("chat templates give the text and the ids of transformers") {
  const Json specs = read_json("templates.json");
  const Json goldens = read_json("goldens.json");
  const std::tm now = time_of(goldens["now"]);
  REQUIRE(goldens["templates"].size() == specs.size());
  for (auto entry = specs.begin(); entry != specs.end(); ++entry) {
    const std::string& name = entry.key();
    const Json& spec = entry.value();
    INFO(name);
    const ChatTemplate chat(spec["template"].get<std::string>(), name);
    const Tokenizer tokenizer = tokenizer_with(spec["special"]);
    const Json& cases = goldens["templates"][name]["cases"];
    CHECK(cases.size() >= 10);
    for (const Json& one : cases) {
      INFO(one.dump());
      const auto render = [&] {
        return chat.render(messages_of(one["messages"]), one["add_generation_prompt"],
                           special_tokens_of(spec), now);
      };
      if (one.contains("refused")) {
        const std::string reason = one["refused"];
        CHECK_THROWS_WITH(render(), Catch::Contains(reason));
        continue;
      }
      const ChatText rendered = render();
      CHECK(rendered.text == one["text"]);
      // What a message says is text: the ids are those of a tokenizer that has other names for its
      // special tokens.
      CHECK(tokenizer.encode(rendered.text, rendered.contents) ==
            one["ids"].get<std::vector<int32_t>>());
      const char* parsed = one.contains("ids_parsed") ? "ids_parsed" : "ids";
      CHECK(tokenizer.encode(rendered.text, /*add_special=*/false) ==
            one[parsed].get<std::vector<int32_t>>());
    }
  }
}

TEST_CASE("the template language means what it means to transformers") {
  const Json goldens = read_json("goldens.json");
  const std::tm now = time_of(goldens["now"]);
  CHECK(goldens["snippets"].size() > 50);
  for (const Json& one : goldens["snippets"]) {
    INFO(one.dump());
    const auto render = [&] {
      const ChatTemplate chat(one["template"].get<std::string>(), "snippet");
      return chat.render(messages_of(one["messages"]), true,
                         {{"bos_token", "<s>"}, {"eos_token", "</s>"}}, now);
    };
    if (one.contains("refused")) {
      CHECK_THROWS_WITH(render(), Catch::StartsWith("snippet, line 1: "));
    } else {
      CHECK(render().text == one["text"]);
    }
  }
}

}  // namespace
}  // namespace edgellm
