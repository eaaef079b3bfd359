// What a tokenizer.json makes of texts, for differential.py: reads lines of JSON strings (texts) or
// arrays (ids) from standard input and answers each with one line of JSON.
#include <fstream>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>

#include "tokenizer/text_stream.h"
#include "tokenizer/tokenizer.h"

namespace {

using edgellm::Tokenizer;
using nlohmann::json;

// As a program shows it while it comes; special tokens add nothing.
std::string streamed(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  edgellm::TextStream stream(tokenizer, {});
  std::string text;
  for (const int32_t id : ids) text += stream.push(id);
  return text + stream.finish();
}

json answer(const Tokenizer& tokenizer, const json& question) {
  json result;
  std::vector<int32_t> ids;
  if (question.is_string()) {
    const auto text = question.get<std::string>();
    ids = tokenizer.encode(text, /*add_special=*/false);
    result["ids"] = ids;
    result["special_ids"] = tokenizer.encode(text, /*add_special=*/true);
  } else {
    ids = question.get<std::vector<int32_t>>();
  }
  // Bytes may be no UTF-8 here; JSON has no other way to say so.
  result["decoded"] = json::array();
  for (const char byte : tokenizer.decode(ids, /*skip_special=*/false)) {
    result["decoded"].push_back(static_cast<uint8_t>(byte));
  }
  result["shown"] = streamed(tokenizer, ids);
  return result;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: tokenize_lines TOKENIZER.json <LINES\n";
    return 2;
  }
  try {
    std::ifstream file(argv[1], std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    const Tokenizer tokenizer = Tokenizer::from_json(text, argv[1]);
    std::string line;
    while (std::getline(std::cin, line)) {
      std::cout << answer(tokenizer, json::parse(line)).dump() << '\n';
    }
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
