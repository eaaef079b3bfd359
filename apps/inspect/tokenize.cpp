// edgellm tokenize: text in, ids out.
#include <unistd.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "apps/common/files.h"
#include "apps/common/terminal.h"
#include "apps/flags/flags.h"
#include "apps/inspect/commands.h"
#include "apps/session/prompt.h"
#include "apps/session/session.h"
#include "base/error.h"

namespace edgellm {
namespace {

struct TokenizeFlags {
  std::string source;
  PromptSource text;
  bool json = false;
  bool no_special = false;
};

bool is_json_file(const std::string& path) {
  constexpr size_t kHeadBytes = 64;
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) return false;
  const std::string head = read_head(path, kHeadBytes);
  const size_t first = head.find_first_not_of(" \t\r\n");
  return first != std::string::npos && head[first] == '{';
}

// The text is used exactly as it is, its last newline included.
PromptText read_text(const PromptSource& flags) {
  if (flags.any()) return read_named_text(flags);
  if (is_terminal(STDIN_FILENO)) {
    throw Error(ExitCode::kUsage,
                "no text; usage: edgellm tokenize MODEL \"some text\" (or -f FILE)");
  }
  return {read_stdin(), "standard input"};
}

std::vector<int32_t> ids_of(const TokenizeFlags& flags, const PromptText& text) {
  const bool special = !flags.no_special;
  if (is_json_file(flags.source)) {
    return Tokenizer::from_json(read_input(flags.source), flags.source).encode(text.text, special);
  }
  const ModelFile model = open_model(flags.source);
  const auto tokenizer = load_tokenizer(model);
  if (!tokenizer) {
    throw Error(ExitCode::kUnsupported,
                model.path() + " has no tokenizer; name a tokenizer.json instead");
  }
  return special ? encode_prompt(*tokenizer, model.tokenizer(), text.text)
                 : tokenizer->encode(text.text, /*add_special=*/false);
}

int tokenize(const TokenizeFlags& flags) {
  const PromptText text = read_text(flags.text);
  require_utf8(text);
  const std::vector<int32_t> ids = ids_of(flags, text);
  if (flags.json) {
    print_json({{"ids", ids}});
    return 0;
  }
  std::string line;
  for (const int32_t id : ids) line += (line.empty() ? "" : " ") + std::to_string(id);
  write_stdout(line + "\n");
  return 0;
}

}  // namespace

void add_tokenize(Program& program) {
  Command& command =
      program.add("tokenize", "Show the token ids of a text",
                  "  edgellm tokenize model.tmac2 \"Once upon a time\"\n"
                  "  edgellm tokenize tokenizer.json -f story.txt --json --no-special");
  auto flags = std::make_shared<TokenizeFlags>();
  command.option("MODEL", flags->source, "A model as run takes it, or a tokenizer.json")
      .required()
      .value("MODEL|FILE.json");
  add_prompt_options(command, flags->text, PromptForms::kText);
  command.flag("--json", flags->json, "Print {\"ids\":[...]}");
  command.flag("--no-special", flags->no_special,
               "Add no BOS and no template; special tokens in the text still become their ids");
  command.runs([flags] { return tokenize(*flags); });
}

}  // namespace edgellm
