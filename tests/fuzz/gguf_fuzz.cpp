// The importer of GGUF files.
//
// An input is a letter, the layout of I2_S (x, a, r; any other: none is named), then the file.
#include <filesystem>
#include <fstream>
#include <stdexcept>

#include "model/convert.h"
#include "model/model_file.h"
#include "tests/fuzz/fuzz.h"
#include "tests/support/temp_dir.h"
#include "tokenizer/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace edgellm;
  static const test::TempDir folder;
  fuzz::Input input(data, size);
  const char layout = input.byte();
  const std::string_view bytes = input.rest();
  const std::string path = folder / "in.gguf";
  std::ofstream(path, std::ios::binary | std::ios::trunc)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));

  const std::string output = folder / "out.tmac2";
  GgufOptions gguf;
  gguf.i2s_layout = layout == 'x' ? "x86" : layout == 'a' ? "arm" : layout == 'r' ? "rows" : "";
  ConvertOptions options;
  options.check_tokenizer = [](std::string_view json, const std::string& where) {
    Tokenizer::from_json(json, where);
  };
  unlink(output.c_str());
  fuzz::may_refuse([&] {
    convert_gguf(path, output, gguf, options);
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
