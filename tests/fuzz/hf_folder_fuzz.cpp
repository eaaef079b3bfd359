// The importer of Hugging Face folders: config.json, safetensors and the tokenizer's files.
//
// An input is the text of each of kTexts, each with a zero byte behind it, then a letter and
// model.safetensors:
//   F  the rest is the file
//   H  its JSON header, a zero byte, then the tensors: the length in front is made to fit
#include <array>
#include <cstring>
#include <fstream>

#include "model/convert.h"
#include "model/model_file.h"
#include "tests/fuzz/fuzz.h"
#include "tests/support/temp_dir.h"
#include "tokenizer/tokenizer.h"

namespace edgellm::fuzz {
namespace {

constexpr std::array kTexts = {"config.json", "tokenizer.json", "tokenizer_config.json",
                               "generation_config.json", "model.safetensors.index.json"};

// An empty text is no file.
void write_or_remove(const std::string& path, std::string_view bytes) {
  if (bytes.empty()) {
    unlink(path.c_str());
    return;
  }
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

std::string safetensors(Input& input) {
  if (input.byte() != 'H') return std::string(input.rest());
  const std::string_view header = input.text();
  const uint64_t length = header.size();
  std::string file(8, '\0');
  std::memcpy(file.data(), &length, 8);
  return file.append(header).append(input.rest());
}

}  // namespace
}  // namespace edgellm::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace edgellm;
  static const test::TempDir folder;
  fuzz::Input input(data, size);
  for (const char* name : fuzz::kTexts) fuzz::write_or_remove(folder / name, input.text());
  fuzz::write_or_remove(folder / "model.safetensors", fuzz::safetensors(input));

  const std::string output = folder / "out.tmac2";
  ConvertOptions options;
  options.check_tokenizer = [](std::string_view json, const std::string& path) {
    Tokenizer::from_json(json, path);
  };
  unlink(output.c_str());
  fuzz::may_refuse([&] {
    convert_hf(folder.path().string(), output, options);
    // What the importer wrote may not be refused: no Error passes from here.
    try {
      ModelFile::open(output).verify_contents();
    } catch (const Error& error) {
      throw std::logic_error(std::string("the importer wrote a bad file: ") + error.what());
    }
  });
  // Whatever happened, no temporary file is left.
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    if (entry.path().filename().string().starts_with("out.tmac2.")) {
      throw std::logic_error("a temporary file was left behind");
    }
  }
  return 0;
}
