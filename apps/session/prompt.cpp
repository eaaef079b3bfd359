#include "apps/session/prompt.h"

#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include "apps/common/files.h"
#include "apps/common/terminal.h"
#include "base/error.h"
#include "base/json.h"

namespace edgellm {
namespace {

// Only what a shell makes with `|` or `<` stands before a prompt. A socket or a device is what a
// service or a container happens to have as standard input; reading it could wait for ever.
bool stdin_is_pipe_or_file() {
  struct stat status = {};
  return fstat(STDIN_FILENO, &status) == 0 && (S_ISFIFO(status.st_mode) || S_ISREG(status.st_mode));
}

// A pipe that somebody holds open without writing would look like a hang: say what is awaited.
void note_if_stdin_is_slow() {
  constexpr int kPatienceMs = 2000;
  pollfd waiting = {.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
  if (poll(&waiting, 1, kPatienceMs) == 0) {
    print_note(
        "waiting for standard input to end, because it stands before the prompt; "
        "add </dev/null if nothing is coming");
  }
}

}  // namespace

PromptText read_named_text(const PromptSource& from) {
  const auto& given = from.positional ? from.positional : from.text;
  if (given && *given != "-") return {*given, "the prompt"};
  const std::string path = given ? "-" : from.file.value();
  return {read_input(path), path == "-" ? "standard input" : path};
}

PromptText read_prompt(const PromptSource& from) {
  if (!from.any()) {
    if (is_terminal(STDIN_FILENO)) {
      throw Error(ExitCode::kUsage,
                  "no prompt; type edgellm run MODEL \"some text\", or edgellm chat MODEL for a "
                  "conversation");
    }
    return {read_stdin(), "standard input"};
  }
  const bool is_stdin = from.positional == "-" || from.text == "-" || from.file == "-";
  if (is_stdin || !stdin_is_pipe_or_file()) return read_named_text(from);

  note_if_stdin_is_slow();
  std::string before = read_stdin();
  PromptText prompt = read_named_text(from);
  if (before.empty()) return prompt;
  if (before.back() != '\n') before += '\n';
  return {before + prompt.text, "standard input and " + prompt.source};
}

void require_utf8(const PromptText& prompt) {
  const size_t offset = find_invalid_utf8(prompt.text);
  if (offset == std::string::npos) return;
  throw Error(ExitCode::kUsage, prompt.source + " is not UTF-8 at byte " + std::to_string(offset) +
                                    "; convert it first, for example with iconv -t UTF-8");
}

void require_prompt(const PromptText& prompt) {
  if (prompt.text.empty()) {
    throw Error(ExitCode::kUsage, prompt.source + " is empty; give some text to continue");
  }
  require_utf8(prompt);
}

std::vector<int32_t> encode_prompt(const Tokenizer& tokenizer, const TokenizerInfo& info,
                                   std::string_view text) {
  std::vector<int32_t> ids = tokenizer.encode(text, /*add_special=*/true);
  if (info.add_bos && info.bos && (ids.empty() || ids.front() != *info.bos)) {
    ids.insert(ids.begin(), *info.bos);
  }
  return ids;
}

std::vector<int32_t> read_ids_file(const std::string& path, int vocab) {
  const auto fail = [&](const std::string& what) {
    throw Error(ExitCode::kUsage, path + ": " + what +
                                      "; expected a JSON array of token ids, for "
                                      "example [1, 2, 3]");
  };
  // A corpus for perplexity has millions of ids.
  constexpr size_t kMaxIds = 100'000'000;
  const auto json = try_parse_json(read_input(path), /*keep=*/nullptr, kMaxIds);
  if (!json) fail("not valid JSON");
  if (!json->is_array()) fail("not a JSON array");
  if (json->empty()) fail("no ids in it");
  std::vector<int32_t> ids;
  ids.reserve(json->size());
  for (const auto& entry : *json) {
    const std::string where = "entry " + std::to_string(ids.size());
    if (!entry.is_number_integer()) fail(where + " is not an integer");
    int64_t id = 0;
    if (!integer_in(entry, 0, vocab - 1, id)) {
      fail(where + " is outside the model's vocabulary of " + std::to_string(vocab));
    }
    ids.push_back(static_cast<int32_t>(id));
  }
  return ids;
}

void fail_without_tokenizer(const ModelFile& model) {
  throw Error(ExitCode::kUsage,
              model.path() + " has no tokenizer, so it takes no text; give ids with --ids-file");
}

std::vector<int32_t> prompt_ids(const PromptSource& from, const PromptText& prompt,
                                const ModelFile& model, const Tokenizer* tokenizer) {
  if (from.ids_file) return read_ids_file(*from.ids_file, model.config().vocab);
  if (tokenizer == nullptr) fail_without_tokenizer(model);
  require_prompt(prompt);
  return encode_prompt(*tokenizer, model.tokenizer(), prompt.text);
}

}  // namespace edgellm
