// A batch's input, request by request, and the lines of an output that is gone on with.
//
// An input is the file's bytes.
#include "apps/batch/input.h"
#include "apps/batch/records.h"
#include "tests/fuzz/fuzz.h"

namespace edgellm::fuzz {
namespace {

void read_input(const std::string& path, bool is_text) {
  BatchInput input(path, is_text);
  BatchDefaults defaults;
  defaults.chat = true;
  defaults.system = "s";
  BatchInput::Request request;
  BatchIds ids;
  while (input.next(request, /*may_wait=*/true) == LineReader::Status::kLine) {
    if (ids.assign(request.id, request.line).used_in_line != 0) {
      throw std::logic_error("two requests of one id");
    }
    if (!request.problem.empty()) {
      may_refuse([&] { throw Error(ExitCode::kUsage, request.problem); });
      continue;
    }
    may_refuse([&] {
      if (is_text) {
        text_request(request.text, defaults, request.where());
      } else {
        read_batch_request(*request.json, defaults, request.where());
      }
    });
  }
}

}  // namespace
}  // namespace edgellm::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace edgellm;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const fuzz::MemoryFile file(bytes);
  fuzz::read_input(file.path(), /*is_text=*/false);
  fuzz::read_input(file.path(), /*is_text=*/true);
  const std::string line(bytes.substr(0, bytes.find('\n')));
  if (const auto info = read_record(line)) {
    const auto moved = read_record(moved_record(line, 5));
    if (!moved || moved->head.line != 5 || moved->head.custom_id != info->head.custom_id) {
      throw std::logic_error("a record that was moved is another");
    }
  }
  return 0;
}
