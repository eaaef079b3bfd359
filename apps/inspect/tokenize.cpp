// edgellm tokenize: text in, ids out; edgellm detokenize: the way back.
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "apps/common/files.h"
#include "apps/common/parse_number.h"
#include "apps/common/terminal.h"
#include "apps/flags/flags.h"
#include "apps/inspect/commands.h"
#include "apps/session/prompt.h"
#include "apps/session/session.h"
#include "base/error.h"
#include "base/text.h"

namespace edgellm {
namespace {

struct TokenizeFlags {
  ModelChoice source;
  PromptSource text;
  bool json = false;
  bool no_special = false;
  bool pieces = false;
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

// The tokenizer of a model or of a tokenizer.json, and what the model adds to a prompt.
struct Source {
  Tokenizer tokenizer;
  TokenizerInfo info;

  std::vector<int32_t> encode(const std::string& text, bool special) const {
    return special ? encode_prompt(tokenizer, info, text)
                   : tokenizer.encode(text, /*add_special=*/false);
  }
};

Source open_source(const ModelChoice& choice) {
  const std::string& name = choice.name;
  if (is_json_file(name)) return {Tokenizer::from_json(read_input(name), name), {}};
  const ModelFile model = open_model(choice);
  auto tokenizer = load_tokenizer(model);
  if (!tokenizer) {
    throw Error(ExitCode::kUnsupported,
                model.path() + " has no tokenizer; name a tokenizer.json instead");
  }
  return {std::move(*tokenizer), model.tokenizer()};
}

int tokenize(const TokenizeFlags& flags) {
  const PromptText text = read_text(flags.text);
  require_utf8(text);
  const Source source = open_source(flags.source);
  const std::vector<int32_t> ids = source.encode(text.text, !flags.no_special);
  const auto piece = [&](int32_t id) { return std::string(source.tokenizer.token_bytes(id)); };
  if (flags.json) {
    nlohmann::ordered_json json = {{"schema", "edgellm.tokenize/1"}, {"ids", ids}};
    if (flags.pieces) {
      json["pieces"] = nlohmann::ordered_json::array();
      for (const int32_t id : ids) json["pieces"].push_back(piece(id));
    }
    print_json(json);
    return 0;
  }
  std::string lines;
  for (const int32_t id : ids) {
    if (flags.pieces) {
      lines += std::to_string(id) + "\t" + json_line(piece(id));
    } else {
      lines += (lines.empty() ? "" : " ") + std::to_string(id);
    }
  }
  write_stdout(flags.pieces ? lines : lines + "\n");
  return 0;
}

struct DetokenizeFlags {
  ModelChoice source;
  std::vector<std::string> ids;
  std::string file;
  bool json = false;
  bool no_special = false;
};

std::string read_ids(const DetokenizeFlags& flags) {
  if (!flags.ids.empty()) return join(flags.ids, " ");
  if (!flags.file.empty()) return read_input(flags.file);
  if (is_terminal(STDIN_FILENO)) {
    throw Error(ExitCode::kUsage, "no ids; usage: edgellm detokenize MODEL 1 2 3 (or -f FILE)");
  }
  return read_stdin();
}

// Numbers with spaces, commas or the brackets of a JSON array around them.
std::vector<int32_t> parse_ids(const std::string& text, int32_t max_id) {
  constexpr const char* kBetween = " ,[]\t\r\n";
  std::vector<int32_t> ids;
  for (size_t begin = 0; (begin = text.find_first_not_of(kBetween, begin)) != std::string::npos;) {
    const size_t end = std::min(text.find_first_of(kBetween, begin), text.size());
    const std::string word = text.substr(begin, end - begin);
    const std::optional<int32_t> id = try_parse_number<int32_t>(word);
    if (!id || *id < 0 || *id > max_id) {
      throw Error(ExitCode::kUsage, "'" + printable(word) + "' is not a token id from 0 to " +
                                        std::to_string(max_id));
    }
    ids.push_back(*id);
    begin = end;
  }
  return ids;
}

int detokenize(const DetokenizeFlags& flags) {
  const std::string given = read_ids(flags);
  const Source source = open_source(flags.source);
  const std::vector<int32_t> ids = parse_ids(given, source.tokenizer.max_id());
  const std::string text = source.tokenizer.decode(ids, /*skip_special=*/flags.no_special);
  if (flags.json) {
    print_json({{"schema", "edgellm.detokenize/1"}, {"text", text}});
  } else {
    write_stdout(text.ends_with('\n') ? text : text + "\n");
  }
  return 0;
}

void add_source(Command& command, ModelChoice& source) {
  command.option("MODEL", source.name, "A model as run takes it, or a tokenizer.json")
      .aliases("-m,--model")
      .required()
      .value("MODEL|FILE.json");
  add_no_cache_flag(command, source.no_cache);
}

}  // namespace

void add_tokenize(Program& program) {
  Command& command =
      program.add("tokenize", "Show the token ids of a text",
                  "  edgellm tokenize model.tmac2 \"Once upon a time\"\n"
                  "  edgellm tokenize model.tmac2 \"Once upon a time\" --pieces\n"
                  "  edgellm tokenize tokenizer.json -f story.txt --json --no-special");
  auto flags = std::make_shared<TokenizeFlags>();
  add_source(command, flags->source);
  add_prompt_options(command, flags->text, PromptForms::kText);
  command.flag("--pieces", flags->pieces,
               "A line for each token: its id, a tab, its text in quotes");
  command.flag("--json", flags->json, "Print {\"ids\":[...]}, with --pieces their texts as well");
  command.flag("--no-special", flags->no_special,
               "Add no BOS and no template; special tokens in the text still become their ids");
  command.runs([flags] { return tokenize(*flags); });
}

void add_detokenize(Program& program) {
  Command& command =
      program.add("detokenize", "Show the text of token ids",
                  "  edgellm detokenize model.tmac2 4093 46 1902 568 258 572\n"
                  "  edgellm tokenize model.tmac2 -f story.txt | edgellm detokenize model.tmac2");
  auto flags = std::make_shared<DetokenizeFlags>();
  add_source(command, flags->source);
  const Option ids = command.words(
      "IDS", flags->ids, "The ids; without them standard input is read, as tokenize writes it");
  command
      .option("-f,--file", flags->file,
              "Read the ids from a file: numbers, or a JSON array of them; - is standard input")
      .value("FILE.json")
      .excludes(ids);
  command.flag("--json", flags->json, "Print {\"text\":...}");
  command.flag("--no-special", flags->no_special, "Leave special tokens out of the text");
  command.runs([flags] { return detokenize(*flags); });
}

}  // namespace edgellm
