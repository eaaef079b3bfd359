// The reader of tokenizer.json, and the tokenizer it makes.
//
// An input is the JSON, a zero byte, then a text to encode.
#include "tests/fuzz/fuzz.h"
#include "tokenizer/text_stream.h"
#include "tokenizer/tokenizer.h"

namespace edgellm::fuzz {
namespace {

void use(const Tokenizer& tokenizer, std::string_view text) {
  for (const bool special : {false, true}) {
    const std::vector<int32_t> ids = tokenizer.encode(text, special);
    tokenizer.decode(ids, special);
    TextStream stream(tokenizer, {"e", "\u00e9\n"});
    std::string shown;
    for (const int32_t id : ids) {
      if (id < 0 || id > tokenizer.max_id()) throw std::logic_error("an id that is unknown");
      shown += stream.push(id);
    }
    shown += stream.finish();
    if (find_invalid_utf8(shown) != std::string::npos) {
      throw std::logic_error("a stream's text is not UTF-8");
    }
  }
}

}  // namespace
}  // namespace edgellm::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace edgellm;
  fuzz::Input input(data, size);
  const std::string_view json = input.text();
  fuzz::may_refuse([&] {
    const Tokenizer tokenizer = Tokenizer::from_json(json, "tokenizer.json");
    fuzz::may_refuse([&] { fuzz::use(tokenizer, input.rest()); });
  });
  return 0;
}
