// The reader of .tmac2 files, and the engine on what it accepts without looking at the weights.
//
// An input begins with a letter:
//   F  the rest is the file
//   M  metadata, a zero byte, then the file from its first section on: header and padding are made
//      to fit, since no mutation would ever meet the hash of the metadata
//   H  as M, and the hashes of the sections are made to fit
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/hash.h"
#include "base/text.h"
#include "engine/backend.h"
#include "model/layout.h"
#include "model/model_file.h"
#include "tests/fuzz/fuzz.h"

namespace edgellm::fuzz {
namespace {

using namespace model_io;
using Json = nlohmann::json;

uint64_t unsigned_or_0(const Json& object, const char* key) {
  const auto value = object.find(key);
  return value != object.end() && value->is_number_unsigned() ? value->get<uint64_t>() : 0;
}

// Metadata that is no such JSON stays as it is.
std::string with_section_hashes(std::string_view metadata, std::string_view data) {
  Json json = Json::parse(metadata, nullptr, /*allow_exceptions=*/false);
  const uint64_t data_begin = round_up(kHeaderBytes + metadata.size(), kFirstSectionAlignment);
  if (!json.is_object() || !json.contains("sections") || !json["sections"].is_array()) {
    return std::string(metadata);
  }
  for (Json& section : json["sections"]) {
    if (!section.is_object()) continue;
    const uint64_t offset = unsigned_or_0(section, "offset");
    const uint64_t bytes = unsigned_or_0(section, "bytes");
    if (offset < data_begin || offset - data_begin > data.size()) continue;
    if (bytes > data.size() - (offset - data_begin)) continue;
    section["xxh3"] = hex64(xxh3(data.data() + (offset - data_begin), static_cast<size_t>(bytes)));
  }
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string file_of(std::string_view metadata, std::string_view data) {
  std::string file(round_up(kHeaderBytes + metadata.size(), kFirstSectionAlignment), '\0');
  const uint64_t bytes = metadata.size();
  const uint64_t hash = xxh3(metadata.data(), metadata.size());
  std::memcpy(file.data(), kMagic, 8);
  std::memcpy(file.data() + 8, &kVersion, 4);
  std::memcpy(file.data() + 16, &bytes, 8);
  std::memcpy(file.data() + 24, &hash, 8);
  std::memcpy(file.data() + kHeaderBytes, metadata.data(), metadata.size());
  return file.append(data);
}

std::string input_file(Input& input) {
  const char form = input.byte();
  if (form != 'M' && form != 'H') return std::string(input.rest());
  const std::string_view metadata = input.text();
  const std::string_view data = input.rest();
  return file_of(form == 'H' ? with_section_hashes(metadata, data) : std::string(metadata), data);
}

// What `run --no-verify` does with weights that nobody has checked.
void run_unverified(const ModelFile& model) {
  EngineOptions options;
  options.context = 2;
  options.max_rows = 2;
  options.threads = 1;
  const auto backend = make_cpu_backend(model, options);
  const int32_t ids[] = {0, model.config().vocab - 1};
  const int32_t sequences[] = {0, 0};
  const int32_t positions[] = {0, 1};
  const int32_t row = 1;
  int32_t next = -1;
  Outputs outputs;
  outputs.rows = {&row, 1};
  outputs.ids = {&next, 1};
  backend->forward({ids, sequences, positions}, outputs);
}

}  // namespace
}  // namespace edgellm::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace edgellm;
  fuzz::Input input(data, size);
  const fuzz::MemoryFile file(fuzz::input_file(input));
  fuzz::may_refuse([&] { ModelFile::open(file.path()).verify_contents(); });
  fuzz::may_refuse([&] { fuzz::run_unverified(ModelFile::open(file.path())); });
  return 0;
}
