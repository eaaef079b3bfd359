// edgellm verify: is this file whole, and does this machine compute with it what the converting one
// computed?
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "apps/common/exit_codes.h"
#include "apps/common/terminal.h"
#include "apps/flags/flags.h"
#include "apps/inspect/commands.h"
#include "apps/session/golden.h"
#include "apps/session/session.h"
#include "base/error.h"
#include "base/text.h"
#include "engine/kv_type.h"

namespace edgellm {
namespace {

struct VerifyFlags {
  ModelChoice model;
  std::string device = "auto";
  int threads = 0;
  bool json = false;
};

enum class Status { kOk, kFailed, kSkipped };

struct Check {
  std::string name;
  Status status = Status::kOk;
  std::string detail = {};
};

// Every fault of the bytes themselves throws: such a file is corrupt (exit 3), not merely wrong.
Check contents_check(const ModelFile& model) {
  ProgressLine progress;
  model.verify_contents(progress.callback());
  return {"contents", Status::kOk,
          std::to_string(model.sections().size()) + " sections: hashes, padding, codes, scales"};
}

// Text that most tokenizers give back unchanged: scripts, runs of spaces, line ends, digits,
// characters of one to four bytes. All in NFC, as some models normalise to it.
constexpr std::string_view kRoundTripTexts[] = {
    "Once upon a time, there was a king.",
    "  two  blanks,\ttabs\t\tand\r\nline ends\n\n\n",
    "don't WE'LL I'm 1234567 3.14159 a_b-c/d#e@f",
    "na\u00efve caf\u00e9 \u00df \u0141\u00f3d\u017a \u0395\u03bb\u03bb\u03b7\u03bd\u03b9\u03ba"
    "\u03ac \u0440\u0443\u0441\u0441\u043a\u0438\u0439",
    "\u65e5\u672c\u8a9e\u306e\u6587 \u4e2d\u6587 \ud55c\uad6d\uc5b4 \u0627\u0644\u0639\u0631"
    "\u0628\u064a\u0629 \u05e2\u05d1\u05e8\u05d9\u05ea",
    "\U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001d54f \u221e\u2260\u2248",
    "if (x < 10) { return \"a\\n\"; }  // <tag attr='v'>",
};

// SentencePiece's decoders take a space off the front of a text, whether or not it was put there.
bool equal_behind_spaces(std::string_view a, std::string_view b) {
  const auto behind = [](std::string_view text) {
    return text.substr(std::min(text.find_first_not_of(' '), text.size()));
  };
  return behind(a) == behind(b);
}

std::string round_trip(const Tokenizer& tokenizer, std::string_view text) {
  return tokenizer.decode(tokenizer.encode(text, /*add_special=*/false), /*skip_special=*/false);
}

// A text must come back unchanged; or, since some tokenizers normalise more than to NFC, what came
// back must.
Check tokenizer_check(const ModelFile& model) {
  const auto tokenizer = load_tokenizer(model);
  if (!tokenizer) return {"tokenizer", Status::kSkipped, "the file holds no tokenizer"};
  int n_normalised = 0;
  for (const std::string_view text : kRoundTripTexts) {
    const std::vector<int32_t> ids = tokenizer->encode(text, /*add_special=*/false);
    for (const int32_t id : ids) {
      if (id >= model.config().vocab) {
        return {"tokenizer", Status::kFailed,
                "id " + std::to_string(id) + " is outside the model's vocabulary of " +
                    std::to_string(model.config().vocab)};
      }
    }
    const std::string back = tokenizer->decode(ids, /*skip_special=*/false);
    if (equal_behind_spaces(back, text)) continue;
    ++n_normalised;
    const bool is_text = find_invalid_utf8(back) == std::string::npos;
    if (!is_text || !equal_behind_spaces(round_trip(*tokenizer, back), back)) {
      return {"tokenizer", Status::kFailed,
              "\"" + std::string(text) + "\" came back as \"" + back + "\""};
    }
  }
  return {
      "tokenizer", Status::kOk,
      std::to_string(std::size(kRoundTripTexts)) + " texts came back " +
          (n_normalised == 0 ? "unchanged" : "(" + std::to_string(n_normalised) + " normalised)")};
}

// The golden again on one device, by the way that `run` takes.
Check golden_check(const std::shared_ptr<const ModelFile>& model, const VerifyFlags& flags,
                   const Device& device) {
  Check check = {device.gpu ? "golden on GPU" : "golden"};
  if (!model->golden()) {
    check.status = Status::kSkipped;
    check.detail = "the file holds no golden ids";
    return check;
  }
  const Golden& golden = *model->golden();
  const auto count = static_cast<int>(golden.greedy_ids.size());
  SessionOptions options;
  options.device = device.gpu ? "cuda:" + std::to_string(*device.gpu) : "cpu";
  options.threads = flags.threads;
  options.kv_type = to_string(golden_kv_type(model->config()));
  options.no_verify = true;  // contents_check() has
  Session session(model, options, std::vector{device});
  const EngineOptions engine =
      session.engine_options(golden_context(model->config(), golden.prompt_ids.size(), count));
  Backend& backend = session.start(engine);
  const std::vector<int32_t> ids = greedy_ids(backend, golden.prompt_ids, count);
  if (ids == golden.greedy_ids) {
    check.detail =
        std::to_string(ids.size()) + " greedy ids generated again on " + backend.info().device;
    return check;
  }
  size_t at = 0;
  while (at < ids.size() && at < golden.greedy_ids.size() && ids[at] == golden.greedy_ids[at]) ++at;
  check.status = Status::kFailed;
  check.detail = "the greedy ids differ from position " + std::to_string(at) + " on, on " +
                 backend.info().device;
  return check;
}

// Where the user named no device, a GPU that cannot hold the model is no fault of the file.
Check gpu_golden_check(const std::shared_ptr<const ModelFile>& model, const VerifyFlags& flags,
                       const Device& device) {
  try {
    return golden_check(model, flags, device);
  } catch (const Error& error) {
    if (flags.device != "auto" || error.code() != ExitCode::kDevice) throw;
    return {"golden on GPU", Status::kSkipped, error.what()};
  }
}

const char* json_name(Status status) {
  switch (status) {
    case Status::kOk:
      return "ok";
    case Status::kFailed:
      return "failed";
    case Status::kSkipped:
      break;
  }
  return "skipped";
}

const char* text_name(Status status) {
  return status == Status::kFailed ? "FAILED" : status == Status::kOk ? "OK" : "skipped";
}

int verify(const VerifyFlags& flags) {
  const Device device = choose_device(flags.device, print_note);
  const auto file = std::make_shared<const ModelFile>(open_model(flags.model));
  const ModelFile& model = *file;
  bool passed = true;
  nlohmann::ordered_json checks = nlohmann::ordered_json::array();
  const auto report = [&](const Check& check) {
    passed = passed && check.status != Status::kFailed;
    checks.push_back(
        {{"name", check.name}, {"status", json_name(check.status)}, {"detail", check.detail}});
    if (!flags.json) {
      write_stdout(check.name + ": " + text_name(check.status) + " (" +
                   printable_path(check.detail) + ")\n");
    }
  };
  report(contents_check(model));
  report(tokenizer_check(model));
  report(golden_check(file, flags, /*device=*/{}));
  if (device.gpu) report(gpu_golden_check(file, flags, device));
  if (flags.json) {
    print_json({{"schema", "edgellm.verify/1"},
                {"model", {{"path", model.path()}, {"id", hex64(model.id())}}},
                {"passed", passed},
                {"checks", checks}});
  }
  if (passed) return 0;
  print_error(model.path() + " failed its verification; convert the model again");
  return static_cast<int>(ExitCode::kVerification);
}

// A file that cannot be read has not passed: who asks for JSON looks at `passed` alone.
int verify_for_all(const VerifyFlags& flags) {
  try {
    return verify(flags);
  } catch (const Error& error) {
    if (!flags.json || error.code() != ExitCode::kModelFile) throw;
    const int exit_code = static_cast<int>(error.code());
    print_error(error.what());
    print_json({{"schema", "edgellm.verify/1"},
                {"passed", false},
                {"error",
                 {{"code", exit_code_name(error.code())},
                  {"exit_code", exit_code},
                  {"message", error.what()}}}});
    return exit_code;
  }
}

}  // namespace

void add_verify(Program& program) {
  Command& command = program.add("verify", "Check a .tmac2 file and what this machine makes of it",
                                 "  edgellm verify model.tmac2\n"
                                 "  edgellm verify model.tmac2 --device cuda:1");
  auto flags = std::make_shared<VerifyFlags>();
  add_model_argument(command, flags->model);
  command
      .option("--device", flags->device,
              "Where the golden ids are generated again: on the CPU in any case, and on this GPU "
              "[auto]")
      .check(device_name_problem)
      .value("auto|cpu|cuda|cuda:N");
  command.option("--threads", flags->threads, "CPU threads [one per usable core]")
      .range(1, kMaxThreads)
      .value("N");
  command.flag("--json", flags->json, "Print one JSON object");
  command.runs([flags] { return verify_for_all(*flags); });
}

}  // namespace edgellm
