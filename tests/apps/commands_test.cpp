// The commands other than run.
#include <catch2/catch.hpp>
#include <cmath>
#include <optional>

#include "base/hash.h"
#include "base/text.h"
#include "model/model_file.h"
#include "tests/apps/program.h"
#include "tests/support/environment.h"
#include "tests/support/fixtures.h"
#include "tests/support/gpu.h"
#include "tests/support/npy.h"
#include "tests/support/skip.h"

namespace edgellm::test {
namespace {

Result run_well(const std::vector<std::string>& args) {
  Result result = run(args);
  INFO(Catch::StringMaker<std::vector<std::string>>::convert(args) << result.err);
  REQUIRE(result.exit_code == 0);
  return result;
}

TEST_CASE("edgellm alone prints a short help") {
  const Result result = run_well({});
  CHECK(std::count(result.out.begin(), result.out.end(), '\n') <= 15);
  CHECK(result.out.find("edgellm run model.tmac2 \"") != std::string::npos);
  CHECK(result.err.empty());
}

TEST_CASE("help begins with examples, for every command") {
  for (const std::string command : {"", "run", "convert", "info", "verify", "tokenize",
                                    "perplexity", "logits", "synth", "devices"}) {
    INFO(command);
    const Result result = command.empty() ? run_well({"--help"}) : run_well({command, "--help"});
    const size_t examples = result.out.find("Examples:\n  edgellm ");
    REQUIRE(examples != std::string::npos);
    CHECK(examples < result.out.find("Usage: edgellm"));
    CHECK(examples < result.out.find("Options:"));
    CHECK(result.out.find("Usage: edgellm " + command) != std::string::npos);
    CHECK(result.err.empty());
  }
}

TEST_CASE("the version says what was built") {
  CHECK(run_well({"--version"}).out.starts_with("edgellm 0."));
  CHECK(run_well({"-V"}).out == run_well({"--version"}).out);
  const auto json = json_of(run_well({"--version", "--json"}));
  CHECK(json["schema"] == "edgellm.version/1");
  CHECK(json["name"] == "edgellm");
  CHECK(json["cuda"].is_boolean());
  for (const char* key : {"version", "revision", "compiler"}) CHECK(!json[key].empty());
}

TEST_CASE("tokenize prints ids") {
  const std::string model = demo_model();
  CHECK(run_well({"tokenize", model, "Once upon a time"}).out == "4093 46 1902 568 258 572\n");
  CHECK(run_well({"tokenize", model, "Once upon a time", "--json"}).out ==
        "{\"schema\":\"edgellm.tokenize/1\",\"ids\":[4093,46,1902,568,258,572]}\n");
  CHECK(run_well({"tokenize", model, "Once<|eot_id|>", "--no-special", "--json"}).out ==
        "{\"schema\":\"edgellm.tokenize/1\",\"ids\":[46,1902,4095]}\n");
  CHECK(json_of(run_well({"tokenize", model, "", "--no-special", "--json"}))["ids"].empty());
  // A newline at the end of a file belongs to the text.
  CHECK(run_with_input({"tokenize", model, "-f", "-", "--no-special"}, "Once\n").out ==
        "46 1902 198\n");
  CHECK(run_with_input({"tokenize", model, "--no-special"}, "Once\n").out == "46 1902 198\n");
}

TEST_CASE("tokenize --pieces shows the text of each token") {
  const std::string model = demo_model();
  CHECK(run_well({"tokenize", model, "Once a\n", "--pieces", "--no-special"}).out ==
        "46\t\"O\"\n1902\t\"nce\"\n258\t\" a\"\n198\t\"\\n\"\n");
  CHECK(json_of(run_well({"tokenize", model, "Once", "--pieces", "--json"}))["pieces"] ==
        std::vector<std::string>{"<|begin_of_text|>", "O", "nce"});
}

TEST_CASE("detokenize is the way back") {
  const std::string model = demo_model();
  CHECK(run_well({"detokenize", model, "46", "1902", "568"}).out == "Once upon\n");
  const std::string text = "There was a na\u00efve king.\n  And then?\n";
  const std::string ids = run_well({"tokenize", model, text}).out;
  CHECK(run_with_input({"detokenize", model, "--no-special"}, ids).out == text);
  CHECK(run_with_input({"detokenize", model}, ids).out == "<|begin_of_text|>" + text);
  CHECK(run_with_input({"detokenize", model, "-f", "-", "--json"}, "[46, 1902]").out ==
        "{\"schema\":\"edgellm.detokenize/1\",\"text\":\"Once\"}\n");
  const TempDir folder;
  const ModelFile file = ModelFile::open(model);
  const std::string path = write_file(folder, "tok.json", std::string(file.tokenizer_json()));
  CHECK(run_well({"detokenize", path, "46"}).out == "O\n");
  CHECK(run_with_input({"detokenize", model}, "").out == "\n");
  check_refused(run({"detokenize", model, "46", "x"}), 2, "'x' is not a token id from 0 to 4095");
  check_refused(run({"detokenize", model, "4096"}), 2, "'4096' is not a token id");
  check_refused(run({"detokenize", tiny_model(folder), "1"}), 4, "has no tokenizer");
}

TEST_CASE("tokenize takes a tokenizer.json as well") {
  const TempDir folder;
  const ModelFile model = ModelFile::open(demo_model());
  const std::string path = write_file(folder, "tok.json", std::string(model.tokenizer_json()));
  const std::string text = "There was a 12 year old na\u00efve king.\n";
  CHECK(run_well({"tokenize", path, text}).out == run_well({"tokenize", demo_model(), text}).out);
}

TEST_CASE("info shows the file without reading its weights") {
  const Result text = run_well({"info", demo_model()});
  CHECK(text.out.find("BitNetForCausalLM") != std::string::npos);
  CHECK(text.out.find("4094 <|end_of_text|>, 4095 <|eot_id|>") != std::string::npos);
  CHECK(text.out.find("RANDOM") == std::string::npos);
  CHECK(text.out.find("licence           MIT License ...") != std::string::npos);
  CHECK(text.err.empty());

  const auto json = json_of(run_well({"info", demo_model(), "--json", "--sections"}));
  CHECK(json["schema"] == "edgellm.info/2");
  CHECK(json["architecture"]["dim"] == 384);
  CHECK(json["architecture"]["act"] == "relu2");
  CHECK(json["architecture"]["norm_eps"].dump() == "1e-05");
  CHECK(json["provenance"]["licence"].get<std::string>().starts_with("MIT License\n"));
  CHECK(json["tokenizer"]["stop_ids"] == std::vector<int>{4094, 4095});
  CHECK(json["tokenizer"]["chat_template"].get<std::string>().find("<|eot_id|>") !=
        std::string::npos);
  CHECK(json["golden"]["greedy_ids"].size() == 16);
  uint64_t section_bytes = 0;
  for (const auto& section : json["sections"]) section_bytes += section["bytes"].get<uint64_t>();
  uint64_t kind_bytes = 0;
  for (const auto& [kind, bytes] : json["bytes_by_kind"].items()) {
    kind_bytes += bytes.get<uint64_t>();
  }
  CHECK(kind_bytes == section_bytes);

  // 10 layers, 2 kv heads, 2048 positions; a key and a value of 64 dimensions, and for codes 12
  // bytes of units.
  constexpr uint64_t kCachedRows = 10 * 2 * 2048;
  CHECK(json["memory"]["kv_cache_i16"] == kCachedRows * (2 * 64 * 2 + 12));
  CHECK(json["memory"]["kv_cache_i8"] == kCachedRows * (2 * 64 + 12));
  CHECK(json["memory"]["kv_cache_f32"] == kCachedRows * (2 * 64 * 4));
  CHECK(text.out.find("11.0 MB KV cache at the full context (i16)") != std::string::npos);

  // What a run takes on a GPU, in a build that knows GPUs.
  const auto gpu = json["memory"]["gpu"];
  const bool knows_gpus = json_of(run_well({"--version", "--json"}))["cuda"].get<bool>();
  REQUIRE(gpu.is_null() == !knows_gpus);
  CHECK((text.out.find("gpu memory") != std::string::npos) == knows_gpus);
  if (knows_gpus) {
    const auto bytes = [&](const char* part) { return gpu[part].get<uint64_t>(); };
    CHECK(bytes("total") ==
          bytes("weights") + bytes("head_copy") + bytes("kv_cache") + bytes("workspace"));
    CHECK(bytes("weights") >= json["bytes_by_kind"]["ternary"].get<uint64_t>() +
                                  json["bytes_by_kind"]["embedding_and_head"].get<uint64_t>());
    CHECK(bytes("kv_cache") >= json["memory"]["kv_cache_i16"].get<uint64_t>());
    CHECK(bytes("workspace") <= uint64_t{64} << 20);
  }
}

TEST_CASE("info says that random weights are random") {
  const TempDir folder;
  const std::string model = tiny_model(folder);
  CHECK(run_well({"info", model}).out.find("RANDOM NUMBERS") != std::string::npos);
  CHECK(json_of(run_well({"info", model, "--json"}))["provenance"]["random"] == true);
}

TEST_CASE("verify checks contents, tokenizer and golden") {
  const Result text = run_well({"verify", demo_model()});
  CHECK(text.out.find("contents: OK") != std::string::npos);
  CHECK(text.out.find("tokenizer: OK") != std::string::npos);
  CHECK(text.out.find("golden: OK (16 greedy ids generated again on cpu (") != std::string::npos);
  CHECK(run_well({"verify", demo_model(), "--device", "cpu"}).out == text.out);
  check_refused(run({"verify", demo_model(), "--device", "tpu"}), 2, "unknown device tpu");
  check_refused(run({"verify", demo_model(), "--device", "cuda"}), 5, "--device cuda");
  const auto json = json_of(run_well({"verify", demo_model(), "--json"}));
  CHECK(json["passed"] == true);
  CHECK(json["checks"].size() == 3);

  const TempDir folder;
  const Result random = run_well({"verify", tiny_model(folder)});
  CHECK(random.out.find("tokenizer: skipped") != std::string::npos);
}

TEST_CASE("verify generates the golden ids on a GPU as well", "[gpu]") {
  if (no_gpu()) return;
  for (const std::string device : {"auto", "cuda"}) {
    const Result result = run({"verify", demo_model(), "--device", device}, {.sees_gpus = true});
    CHECK(result.exit_code == 0);
    CHECK(result.out.find("golden: OK (16 greedy ids generated again on cpu (") !=
          std::string::npos);
    CHECK(result.out.find("golden on GPU: OK (16 greedy ids generated again on cuda:0 (") !=
          std::string::npos);
  }
}

// A model file whose golden lies: header and metadata are made to agree with each other again.
std::string with_wrong_golden(const std::string& bytes) {
  uint64_t metadata_bytes = 0;
  std::memcpy(&metadata_bytes, bytes.data() + 16, 8);
  std::string metadata = bytes.substr(32, metadata_bytes);
  const size_t ids = metadata.find("\"greedy_ids\":[");
  REQUIRE(ids != std::string::npos);
  char& digit = metadata[metadata.find_first_of("0123456789", ids)];
  digit = digit == '1' ? '2' : '1';
  std::string changed = bytes;
  changed.replace(32, metadata_bytes, metadata);
  const uint64_t hash = xxh3(metadata.data(), metadata.size());
  std::memcpy(changed.data() + 24, &hash, 8);
  return changed;
}

TEST_CASE("verify fails with 8 where the model computes something else") {
  const TempDir folder;
  const std::string model =
      write_file(folder, "lies.tmac2", with_wrong_golden(read_file(demo_model())));
  const Result text = run({"verify", model});
  CHECK(text.exit_code == 8);
  CHECK(text.out.find("golden: FAILED (the greedy ids differ from position 0 on, on cpu (") !=
        std::string::npos);
  CHECK(text.err.find("failed its verification") != std::string::npos);
  const Result json = run({"verify", model, "--json"});
  CHECK(json.exit_code == 8);
  // A damaged file has not passed either.
  std::string bytes = read_file(demo_model());
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
  const Result damaged = run({"verify", write_file(folder, "damaged.tmac2", bytes), "--json"});
  CHECK(damaged.exit_code == 3);
  CHECK(json_of(damaged)["passed"] == false);
  CHECK(json_of(damaged)["error"]["code"] == "model_file");
  CHECK(json_of(json)["passed"] == false);
  CHECK(json_of(json)["checks"][2]["status"] == "failed");
}

TEST_CASE("synth gives the same file for the same seed") {
  const TempDir folder;
  const auto synth = [&](const std::string& name, const std::string& seed) {
    const std::string path = (folder / name);
    run_well(
        {"synth", "smollm-135m", "--layers", "1", "--vocab", "50", "--seed", seed, "-o", path});
    return read_file(path);
  };
  const std::string first = synth("a.tmac2", "7");
  CHECK(synth("b.tmac2", "7") == first);
  CHECK(synth("c.tmac2", "8") != first);
  const Result unknown = run({"synth", "gpt-5", "-o", (folder / "x")});
  CHECK(unknown.exit_code != 0);
  CHECK(unknown.err.find("smollm-135m") != std::string::npos);
}

TEST_CASE("logits writes what --json hashes") {
  const TempDir folder;
  const std::string model = tiny_model(folder);
  const std::string ids = write_file(folder, "ids.json", "[5, 0, 96, 33, 33, 7, 1]");
  const std::string all = (folder / "all.npy"), last = (folder / "last.npy");
  const std::string hidden = (folder / "hidden.npy");
  const auto json = json_of(run_well(
      {"logits", model, "--ids-file", ids, "--all", "-o", all, "--hidden", hidden, "--json"}));
  CHECK(json["schema"] == "edgellm.logits/1");
  CHECK(json["rows"] == 7);
  CHECK(json["vocab"] == 97);
  const Npy rows = read_npy(all);
  REQUIRE(rows.shape == std::vector<size_t>{7, 97});
  CHECK(json["logits_xxh3"] == hex64(xxh3(rows.values.data(), 4 * rows.values.size())));
  CHECK(read_npy(hidden).shape == std::vector<size_t>{4, 7, 64});

  run_well({"logits", model, "--ids-file", ids, "-o", last});
  const Npy row = read_npy(last);
  REQUIRE(row.shape == std::vector<size_t>{1, 97});
  CHECK(row.values == std::vector<float>(rows.values.end() - 97, rows.values.end()));

  // One pass or many: the same bytes.
  const std::string chunked = (folder / "chunked.npy"), chunked_hidden = (folder / "ch.npy");
  run_well({"logits", model, "--ids-file", ids, "--all", "-o", chunked, "--hidden", chunked_hidden,
            "--prefill-chunk", "3", "--threads", "1"});
  CHECK(read_file(chunked) == read_file(all));
  CHECK(read_file(chunked_hidden) == read_file(hidden));

  const Result too_long = run({"logits", model, "--ids-file", ids, "--json", "-c", "6"});
  CHECK(too_long.exit_code == 6);
}

TEST_CASE("perplexity is the mean of what logits say") {
  const TempDir folder;
  const std::string model = tiny_model(folder);
  const std::vector<int> ids = {5, 0, 96, 33, 33, 7, 1, 12, 60};
  const std::string file = write_file(folder, "ids.json", nlohmann::json(ids).dump());
  const std::string out = (folder / "logprobs.npy"), logits_file = (folder / "logits.npy");
  run_well({"logits", model, "--ids-file", file, "--all", "-o", logits_file});
  const std::vector<float> logits = read_npy(logits_file).values;
  std::vector<double> expected;
  for (size_t i = 1; i < ids.size(); ++i) {
    const auto row = std::span(logits).subspan((i - 1) * 97, 97);
    double sum = 0;
    for (const float value : row) sum += std::exp(static_cast<double>(value));
    expected.push_back(static_cast<double>(row[static_cast<size_t>(ids[i])]) - std::log(sum));
  }
  const double mean = -std::accumulate(expected.begin(), expected.end(), 0.0) /
                      static_cast<double>(expected.size());

  const auto json =
      json_of(run_well({"perplexity", model, "--ids-file", file, "--json", "--logprobs", out}));
  CHECK(json["tokens"] == 8);
  CHECK(json["windows"] == 1);
  CHECK(json["nll_mean"].get<double>() == Approx(mean).epsilon(1e-6));
  CHECK(json["ppl"].get<double>() == Approx(std::exp(mean)).epsilon(1e-6));
  const Npy logprobs = read_npy(out);
  REQUIRE(logprobs.shape == std::vector<size_t>{8});
  for (size_t i = 0; i < expected.size(); ++i) {
    CHECK(static_cast<double>(logprobs.values[i]) == Approx(expected[i]).epsilon(1e-5));
  }

  // Three windows of three: two ids of each are predicted.
  const auto cut = json_of(run_well(
      {"perplexity", model, "--ids-file", file, "--window", "3", "--json", "--logprobs", out}));
  CHECK(cut["tokens"] == 6);
  CHECK(cut["windows"] == 3);
  CHECK(read_npy(out).shape == std::vector<size_t>{3, 2});
  CHECK(read_npy(out).values[0] == logprobs.values[0]);
  // A last window of one id has nothing to predict; uneven windows are one row.
  CHECK(json_of(run_well(
            {"perplexity", model, "--ids-file", file, "--window", "4", "--json"}))["windows"] == 2);
  run_well({"perplexity", model, "--ids-file", file, "--window", "5", "--logprobs", out});
  CHECK(read_npy(out).shape == std::vector<size_t>{7});
}

TEST_CASE("perplexity puts a BOS before every window of text") {
  const TempDir folder;
  const std::string text = write_file(folder, "text", "Once upon a time there was a king.");
  const auto tokens = json_of(run_well({"tokenize", demo_model(), "-f", text, "--json"}))["ids"];
  const std::string ids = write_file(folder, "ids.json", tokens.dump());  // begins with the BOS
  const auto of_text = json_of(run_well({"perplexity", demo_model(), "-f", text, "--json"}));
  const auto of_ids = json_of(run_well({"perplexity", demo_model(), "--ids-file", ids, "--json"}));
  CHECK(of_text["tokens"] == tokens.size() - 1);
  CHECK(of_text["nll_mean"] == of_ids["nll_mean"]);
  const auto cut =
      json_of(run_well({"perplexity", demo_model(), "-f", text, "--window", "4", "--json"}));
  CHECK(cut["tokens"] == tokens.size() - 1);
  CHECK(cut["nll_mean"] > of_text["nll_mean"]);
}

// ln p of every id but the first of `ids`, by another command and in another way.
std::vector<double> reference_logprobs(const TempDir& folder, const std::string& model,
                                       const std::vector<int>& ids) {
  const std::string file = write_file(folder, "reference.json", nlohmann::json(ids).dump());
  const std::string out = folder / "reference.npy";
  run_well({"logits", model, "--ids-file", file, "--all", "-o", out});
  const Npy logits = read_npy(out);
  std::vector<double> logprobs;
  for (size_t i = 1; i < ids.size(); ++i) {
    const auto row = std::span(logits.values).subspan((i - 1) * logits.shape[1], logits.shape[1]);
    double sum = 0;
    for (const float value : row) sum += std::exp(static_cast<double>(value));
    logprobs.push_back(static_cast<double>(row[static_cast<size_t>(ids[i])]) - std::log(sum));
  }
  return logprobs;
}

std::vector<int> some_ids(int n, int vocab) {
  std::vector<int> ids;
  for (int i = 0; i < n; ++i) ids.push_back((i * i * 7 + i * 31 + 5) % vocab);
  return ids;
}

// transformers' guide, line by line: the loss of a window is the mean over its labels.
double guide_nll(const TempDir& folder, const std::string& model, const std::vector<int>& ids,
                 size_t max_length, size_t stride) {
  const size_t seq_len = ids.size();
  double nll_sum = 0;
  double n_tokens = 0;
  size_t prev_end_loc = 0;
  for (size_t begin_loc = 0; begin_loc < seq_len; begin_loc += stride) {
    const size_t end_loc = std::min(begin_loc + max_length, seq_len);
    const size_t trg_len = end_loc - prev_end_loc;
    const std::vector<int> input(ids.begin() + static_cast<std::ptrdiff_t>(begin_loc),
                                 ids.begin() + static_cast<std::ptrdiff_t>(end_loc));
    const std::vector<double> logprobs = reference_logprobs(folder, model, input);
    const size_t n_labels = std::min(trg_len, logprobs.size());
    double loss = 0;
    for (size_t i = logprobs.size() - n_labels; i < logprobs.size(); ++i) loss -= logprobs[i];
    const auto num_loss_tokens = static_cast<double>(trg_len - 1);
    nll_sum += loss / static_cast<double>(n_labels) * num_loss_tokens;
    n_tokens += num_loss_tokens;
    prev_end_loc = end_loc;
    if (end_loc == seq_len) break;
  }
  return nll_sum / n_tokens;
}

TEST_CASE("perplexity by stride is that of transformers' guide") {
  const TempDir folder;
  const std::string model = tiny_model(folder);
  const std::vector<int> ids = some_ids(75, 97);
  const std::string file = write_file(folder, "ids.json", nlohmann::json(ids).dump());
  for (const auto& [window, stride] :
       {std::pair{20, 7}, {20, 20}, {20, 1}, {100, 7}, {75, 74}, {32, 16}}) {
    INFO(window << " " << stride);
    const double expected =
        guide_nll(folder, model, ids, static_cast<size_t>(window), static_cast<size_t>(stride));
    const auto json =
        json_of(run_well({"perplexity", model, "--ids-file", file, "--window",
                          std::to_string(window), "--stride", std::to_string(stride), "--json"}));
    CHECK(json["method"] == "stride");
    CHECK(json["stride"] == stride);
    CHECK(json["nll_mean"].get<double>() == Approx(expected).epsilon(1e-6));
    // Side by side, no window predicts its first id.
    CHECK(json["tokens"] == (window == stride ? 71 : 74));
  }
  // The defaults: as long as the context, every 512 ids.
  const auto json =
      json_of(run_well({"perplexity", model, "--ids-file", file, "--method", "stride", "--json"}));
  CHECK(json["window"] == 128);
  CHECK(json["stride"] == 128);
}

TEST_CASE("perplexity in llama.cpp's way counts the second half of each window") {
  const TempDir folder;
  const std::string text = write_file(folder, "text", [] {
    std::string story;
    for (int i = 0; i < 60; ++i)
      story += "There was a king who had " + std::to_string(i) + " sons. ";
    return story;
  }());
  const std::vector<int> ids =
      json_of(run_well({"tokenize", demo_model(), "-f", text, "--json"}))["ids"];
  const int bos = ids[0];
  for (const size_t n_ctx : {64, 33}) {
    double nll = 0;
    size_t count = 0;
    for (size_t start = 0; start + n_ctx <= ids.size(); start += n_ctx) {
      std::vector<int> chunk(ids.begin() + static_cast<std::ptrdiff_t>(start),
                             ids.begin() + static_cast<std::ptrdiff_t>(start + n_ctx));
      chunk[0] = bos;
      const std::vector<double> logprobs = reference_logprobs(folder, demo_model(), chunk);
      // process_logits() of llama-perplexity: n_ctx - 1 - first rows from `first` on.
      for (size_t j = n_ctx / 2; j < n_ctx - 1; ++j) {
        nll -= logprobs[j];
        ++count;
      }
    }
    const std::string window = std::to_string(n_ctx);
    const auto json = json_of(run_well({"perplexity", demo_model(), "-f", text, "--method",
                                        "llama.cpp", "--window", window, "--json"}));
    CHECK(json["tokens"] == count);
    CHECK(json["nll_mean"].get<double>() == Approx(nll / static_cast<double>(count)).epsilon(1e-6));
    // The same of a file of the ids.
    const std::string file = write_file(folder, "ids.json", nlohmann::json(ids).dump());
    CHECK(json_of(run_well({"perplexity", demo_model(), "--ids-file", file, "--method", "llama.cpp",
                            "--window", window, "--json"}))["nll_mean"] == json["nll_mean"]);
  }
  check_refused(
      run({"perplexity", demo_model(), "-f", text, "--method", "llama.cpp", "--window", "1024"}), 2,
      "two windows of 1024 are 2048 tokens");
  const Result words =
      run_well({"perplexity", demo_model(), "-f", text, "--method", "llama.cpp", "--window", "64"});
  CHECK(words.out.find(" windows of 64, llama.cpp's way)") != std::string::npos);
}

TEST_CASE("perplexity reads standard input, and counts one window as one") {
  const Result result =
      run_with_input({"perplexity", demo_model()}, "Once upon a time there was a king.");
  CHECK(result.exit_code == 0);
  CHECK(result.out.find(" tokens in 1 window)") != std::string::npos);
}

TEST_CASE("perplexity refuses what it cannot measure") {
  const TempDir folder;
  const std::string one = write_file(folder, "one.json", "[1]");
  const std::string empty = write_file(folder, "empty", "");
  CHECK(run({"perplexity", demo_model()}).exit_code == 2);
  CHECK(run({"perplexity", demo_model(), "--ids-file", one}).exit_code == 2);
  CHECK(run({"perplexity", demo_model(), "-f", empty}).exit_code == 2);
  const Result window = run({"perplexity", demo_model(), "-f", empty, "--window", "2048"});
  CHECK(window.exit_code == 2);
  CHECK(window.err.find("use at most --window 2047") != std::string::npos);
  check_refused(run({"perplexity", demo_model(), "-f", empty, "--window", "8", "--stride", "9"}), 2,
                "use at most --stride 8");
  check_refused(
      run({"perplexity", demo_model(), "-f", empty, "--method", "windows", "--stride", "9"}), 2,
      "--stride changes nothing with --method windows");
  check_refused(run({"perplexity", demo_model(), "-f", empty, "--method", "strides"}), 2,
                "unknown method strides; use windows, stride or llama.cpp; did you mean stride?");
}

TEST_CASE("a file named - is standard output, of every command that writes one") {
  const TempDir folder;
  const TempDir scratch;
  const WithVariable place("TMPDIR", scratch.path().string());
  const std::string ids = write_file(folder, "ids.json", "[1, 2, 3]");
  const std::string file = folder / "file";
  const auto same = [&](std::vector<std::string> args, const std::string& option) {
    INFO(Catch::StringMaker<std::vector<std::string>>::convert(args));
    std::vector<std::string> to_file = args;
    to_file.insert(to_file.end(), {option, file});
    args.insert(args.end(), {option, "-"});
    run_well(to_file);
    const Result result = run_well(args);
    CHECK(result.out.starts_with(read_file(file)));
    CHECK(names_in(scratch).empty());
    return result;
  };
  const std::string model = tiny_model(folder);
  same({"logits", model, "--ids-file", ids}, "-o");
  same({"logits", model, "--ids-file", ids}, "--hidden");
  same({"perplexity", model, "--ids-file", ids}, "--logprobs");
  const Result synth = same({"synth", (folder / "config.json"), "--layers", "1"}, "-o");
  CHECK(synth.err.find("wrote standard output: ") != std::string::npos);
  same({"convert", copy_model(folder)}, "-o");
  CHECK(!std::filesystem::exists("-"));
}

TEST_CASE("devices lists the CPU, and GPUs or the reason for none") {
  const auto json = json_of(run_well({"devices", "--json"}));
  CHECK(json["cpu"]["cores"] >= 1);
  CHECK(!json["cpu"]["isa"].empty());
  CHECK((json["gpus"].empty() != json["gpu_problem"].get<std::string>().empty()));
  CHECK(run_well({"devices"}).out.starts_with("cpu "));
}

// The model folder of the fixtures that a model was made from, by the hashes in its provenance.
std::optional<std::filesystem::path> source_folder(const nlohmann::json& provenance) {
  const auto is_source = [&](const std::filesystem::path& folder) {
    for (const auto& [name, hash] : provenance["source_files"].items()) {
      if (!std::filesystem::exists(folder / name)) return false;
      const std::string bytes = read_file((folder / name).string());
      const uint64_t digest = xxh3(bytes.data(), bytes.size());
      if (hash != "xxh3:" + hex64(digest)) return false;
    }
    return true;
  };
  const auto found =
      fixtures_where([&](const auto& path) { return is_model_folder(path) && is_source(path); });
  return found.empty() ? std::nullopt : std::optional(found.front());
}

TEST_CASE("the committed demo model is what convert makes") {
  const auto provenance = json_of(run_well({"info", demo_model(), "--json"}))["provenance"];
  const auto fixture = source_folder(provenance);
  if (!fixture) return skip("the demo model's source is not below " + fixtures().string());
  // The same files and this repository's licence in a folder of the same name.
  const TempDir folder;
  const auto source = folder.path() / provenance["source"].get<std::string>();
  std::filesystem::create_directory(source);
  for (const auto& [name, hash] : provenance["source_files"].items()) {
    std::filesystem::create_symlink(std::filesystem::absolute(*fixture / name), source / name);
  }
  std::filesystem::copy(EDGELLM_SOURCE_DIR "/LICENSE", source / "LICENSE");
  const std::string out = (folder / "demo.tmac2");
  const Result result = run_well({"convert", source.string(), "-o", out});
  CHECK(result.out.empty());
  CHECK(result.err.find("wrote " + out + ": 17.3 M parameters") != std::string::npos);
  CHECK(names_in(folder) == std::vector<std::string>{"demo-model", "demo.tmac2"});
  CHECK((read_file(out) == read_file(demo_model())));
  run_well({"verify", out});
}

}  // namespace
}  // namespace edgellm::test
