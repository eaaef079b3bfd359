// The C interface against the program: the same ids, the same bits. And what it does with callers
// that break its rules.
#include <edgellm.h>
#include <xxhash.h>

#include <atomic>
#include <cfenv>
#include <cstring>
#include <thread>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "tests/apps/program.h"
#include "tests/capi/handles.h"

namespace edgellm::test {
namespace {

#if defined(__x86_64__)
constexpr unsigned kSubnormalsAreZero = 0x8040;  // as results and as operands
unsigned float_control() { return _mm_getcsr(); }
void set_float_control(unsigned control) { _mm_setcsr(control); }
#elif defined(__aarch64__)
constexpr unsigned kSubnormalsAreZero = 1u << 24;
unsigned float_control() {
  uint64_t control = 0;
  asm volatile("mrs %0, fpcr" : "=r"(control));
  return static_cast<unsigned>(control);
}
void set_float_control(unsigned control) {
  asm volatile("msr fpcr, %0" : : "r"(uint64_t{control}));
}
#endif

const std::string kPrompt = "One day the fox said to the lion,";

// The object that `edgellm run --json` prints.
nlohmann::json run_prompt(std::vector<std::string> more, const std::string& prompt = kPrompt) {
  more.insert(more.begin(), {"run", demo_model(), "-p", prompt, "--json"});
  return json_of(run(more));
}

SequenceHandle prompted(const ModelHandle& model, const std::string& prompt = kPrompt) {
  SequenceHandle sequence = sequence_of(model);
  ok(edgellm_feed_text(sequence.get(), prompt.data(), prompt.size(), EDGELLM_TEXT_PROMPT));
  return sequence;
}

// The call fails with this code, and says why in one line.
void check_fails(edgellm_status status, edgellm_status expected, const std::string& part) {
  const std::string message = edgellm_last_error();
  INFO(message);
  CHECK(status == expected);
  CHECK(!message.empty());
  CHECK(message.find('\n') == std::string::npos);
  CHECK(message.find(part) != std::string::npos);
}

TEST_CASE("greedy ids are those of edgellm run") {
  const auto expected = run_prompt({"-n", "40"});
  for (const int threads : {1, 3}) {
    edgellm_model_options options = cpu_options();
    options.threads = threads;
    options.prefill_chunk = threads == 1 ? 0 : 5;
    const ModelHandle model = open(demo_model(), options);
    CHECK(steps(prompted(model), 40) == expected["token_ids"].get<std::vector<int32_t>>());
  }
}

TEST_CASE("logits have the bits of edgellm logits") {
  const std::pair<int32_t, const char*> kv_types[] = {
      {EDGELLM_KV_I16, "i16"}, {EDGELLM_KV_I8, "i8"}, {EDGELLM_KV_F32, "f32"}};
  for (const auto& [kv_type, name] : kv_types) {
    const auto expected = json_of(
        run({"logits", demo_model(), "-p", kPrompt, "--json", "--kv-type", name}))["logits_xxh3"];
    edgellm_model_options options = cpu_options();
    options.kv_type = kv_type;
    const ModelHandle model = open(demo_model(), options);
    const std::vector<float> logits = logits_of(prompted(model), model);
    char hash[17];
    std::snprintf(hash, sizeof hash, "%016llx",
                  static_cast<unsigned long long>(XXH3_64bits(logits.data(), 4 * logits.size())));
    CHECK(hash == expected);
  }
}

TEST_CASE("logits do not depend on how the ids were fed and what was asked between") {
  const ModelHandle model = open(demo_model());
  const std::vector<int32_t> ids = {1, 500, 77, 3000, 12, 900, 5, 44, 2048, 31};
  SequenceHandle whole = sequence_of(model);
  feed(whole, ids);
  const std::vector<float> expected = logits_of(whole, model);
  int32_t expected_id = -1;
  ok(edgellm_next_id(whole.get(), &expected_id));
  const std::vector<int32_t> others = {1, 500, 77, 3000, 9, 9, 9, 9, 9, 9, 9, 9};
  whole.reset();
  whole = sequence_of(model);
  feed(whole, others);
  const std::vector<float> expected_of_others = logits_of(whole, model);
  whole.reset();

  const SequenceHandle pieces = sequence_of(model);
  int32_t id = -1;
  for (const int32_t each : ids) {
    feed(pieces, {each});
    if (each % 2 == 0) ok(edgellm_next_id(pieces.get(), &id));
    if (each % 3 == 0) logits_of(pieces, model);
  }
  ok(edgellm_next_id(pieces.get(), &id));  // before the logits: by the certified head
  CHECK(id == expected_id);
  CHECK(logits_of(pieces, model) == expected);
  CHECK(logits_of(pieces, model) == expected);

  // There and back again, over ids that were other ones in between.
  ok(edgellm_sequence_truncate(pieces.get(), 4));
  CHECK(edgellm_sequence_length(pieces.get()) == 4);
  feed(pieces, {others.begin() + 4, others.end()});
  CHECK(logits_of(pieces, model) == expected_of_others);
  ok(edgellm_sequence_truncate(pieces.get(), 4));
  feed(pieces, {ids.begin() + 4, ids.end()});
  CHECK(logits_of(pieces, model) == expected);
  ok(edgellm_sequence_truncate(pieces.get(), 0));
  feed(pieces, ids);
  CHECK(logits_of(pieces, model) == expected);
}

TEST_CASE("sampled ids are those of edgellm run") {
  edgellm_sampling_options options = {};
  options.struct_size = sizeof options;
  options.temperature = 0.8;
  options.top_k = 40;
  options.top_p = 0.95;
  options.min_p = 0.01;
  options.repeat_penalty = 1.1;
  options.seed = 0xfedcba9876543210;
  const auto expected =
      run_prompt({"-n", "30", "--temp", "0.8", "--top-k", "40", "--top-p", "0.95", "--min-p",
                  "0.01", "--repeat-penalty", "1.1", "--seed", "18364758544493064720"});
  const ModelHandle model = open(demo_model());
  const SequenceHandle sequence = prompted(model);
  ok(edgellm_sequence_set_sampling(sequence.get(), &options));
  CHECK(steps(sequence, 30) == expected["token_ids"].get<std::vector<int32_t>>());

  // The logits change nothing, before the sampling is set or after it.
  for (const bool logits_first : {true, false}) {
    ok(edgellm_sequence_truncate(sequence.get(), expected["prompt_ids"].size()));
    if (logits_first) logits_of(sequence, model);
    ok(edgellm_sequence_set_sampling(sequence.get(), &options));
    if (!logits_first) logits_of(sequence, model);
    int32_t id = -1;
    ok(edgellm_next_id(sequence.get(), &id));
    CHECK(id == expected["token_ids"][0].get<int32_t>());
  }

  // Back to greedy.
  ok(edgellm_sequence_truncate(sequence.get(), expected["prompt_ids"].size()));
  ok(edgellm_sequence_set_sampling(sequence.get(), nullptr));
  CHECK(steps(sequence, 9) == run_prompt({"-n", "9"})["token_ids"].get<std::vector<int32_t>>());

  const auto refused = [&](const std::string& part, auto&& change) {
    edgellm_sampling_options bad = options;
    change(bad);
    check_fails(edgellm_sequence_set_sampling(sequence.get(), &bad), EDGELLM_ERROR_USAGE, part);
  };
  refused("temperature", [](auto& o) { o.temperature = -1; });
  refused("top-k", [](auto& o) { o.top_k = -1; });
  refused("top-p", [](auto& o) { o.top_p = 1.5; });
  refused("struct_size", [](auto& o) { o.struct_size = 8; });
}

TEST_CASE("ids that end an answer are told, and can be banned") {
  const ModelHandle model = open(demo_model());
  // After a turn of a conversation the model writes the next turn and its end.
  const std::string turn = "Hello<|eot_id|>";
  const auto expected = run_prompt({"-n", "100"}, turn);
  REQUIRE(expected["finish_reason"] == "stop");  // else this tests nothing
  const auto ids = expected["token_ids"].get<std::vector<int32_t>>();
  SequenceHandle sequence = prompted(model, turn);
  for (const int32_t id : steps(sequence, static_cast<int>(ids.size()))) {
    CHECK(edgellm_model_is_stop_id(model.get(), id) == (id == ids.back() ? 1 : 0));
  }
  CHECK(edgellm_model_is_stop_id(model.get(), -1) == 0);
  sequence.reset();

  edgellm_sampling_options options = {};
  options.struct_size = sizeof options;
  options.ban_stop_ids = 1;
  const int n = static_cast<int>(ids.size()) + 5;
  sequence = prompted(model, turn);
  ok(edgellm_sequence_set_sampling(sequence.get(), &options));
  CHECK(steps(sequence, n) ==
        run_prompt({"-n", std::to_string(n), "--ignore-eos"}, turn)["token_ids"]
            .get<std::vector<int32_t>>());
}

TEST_CASE("text becomes the ids of edgellm tokenize, and text again") {
  const ModelHandle model = open(demo_model());
  const std::string text = " The fox \u00e9\u4e16<s> and\n\nthe crow";
  for (const uint32_t flags : {EDGELLM_TEXT_PLAIN, EDGELLM_TEXT_PROMPT}) {
    std::vector<std::string> args = {"tokenize", demo_model(), "--json"};
    if (flags == EDGELLM_TEXT_PLAIN) args.push_back("--no-special");
    args.insert(args.end(), {"--", text});
    const auto expected = json_of(run(args))["ids"].get<std::vector<int32_t>>();

    size_t n = 0;
    ok(edgellm_tokenize(model.get(), text.data(), text.size(), flags, nullptr, 0, &n));
    REQUIRE(n == expected.size());
    std::vector<int32_t> ids(n + 1, -7);
    check_fails(
        edgellm_tokenize(model.get(), text.data(), text.size(), flags, ids.data(), n - 1, &n),
        EDGELLM_ERROR_BUFFER, "are needed");
    CHECK(n == expected.size());
    CHECK(ids[0] == -7);
    ok(edgellm_tokenize(model.get(), text.data(), text.size(), flags, ids.data(), n, &n));
    CHECK(ids.back() == -7);
    ids.resize(n);
    CHECK(ids == expected);

    size_t n_bytes = 0;
    ok(edgellm_detokenize(model.get(), ids.data(), ids.size(), nullptr, 0, &n_bytes));
    std::string back(n_bytes, '?');
    check_fails(edgellm_detokenize(model.get(), ids.data(), ids.size(), back.data(), 1, &n_bytes),
                EDGELLM_ERROR_BUFFER, "are needed");
    ok(edgellm_detokenize(model.get(), ids.data(), ids.size(), back.data(), n_bytes, &n_bytes));
    CHECK(back.find("\u00e9\u4e16") != std::string::npos);
  }
  size_t n = 0;
  check_fails(edgellm_tokenize(model.get(), "ab\xff", 3, 0, nullptr, 0, &n), EDGELLM_ERROR_USAGE,
              "UTF-8");
  check_fails(edgellm_tokenize(model.get(), "ab", 2, 6, nullptr, 0, &n), EDGELLM_ERROR_USAGE,
              "does not know");
  ok(edgellm_tokenize(model.get(), nullptr, 0, 0, nullptr, 0, &n));
  CHECK(n == 0);
}

TEST_CASE("sequences of one model do not disturb each other, one after the other or in threads") {
  edgellm_model_options options = cpu_options();
  options.max_sequences = 3;
  options.threads = 2;
  const ModelHandle model = open(demo_model(), options);
  const std::vector<std::vector<int32_t>> prompts = {{1, 17, 400}, {1, 900}, {5, 6, 7, 8, 9}};
  constexpr int kSteps = 25;
  std::vector<std::vector<int32_t>> alone;
  for (const auto& prompt : prompts) {
    const SequenceHandle sequence = sequence_of(model);
    feed(sequence, prompt);
    alone.push_back(steps(sequence, kSteps));
  }

  std::vector<SequenceHandle> sequences;
  for (const auto& prompt : prompts) {
    sequences.push_back(sequence_of(model));
    feed(sequences.back(), prompt);
  }
  edgellm_sequence* fourth = nullptr;
  check_fails(edgellm_sequence_create(model.get(), &fourth), EDGELLM_ERROR_USAGE, "max_sequences");
  CHECK(fourth == nullptr);
  for (int i = 0; i < kSteps; ++i) {
    for (size_t s = 0; s < sequences.size(); ++s) {
      CHECK(steps(sequences[s], 1).front() == alone[s][static_cast<size_t>(i)]);
    }
  }

  std::vector<std::vector<int32_t>> together(prompts.size());
  std::vector<std::thread> threads;
  for (size_t s = 0; s < sequences.size(); ++s) {
    threads.emplace_back([&, s] {  // Catch2's macros are for one thread
      edgellm_sequence* sequence = sequences[s].get();
      edgellm_sequence_truncate(sequence, prompts[s].size());
      int32_t id = -1;
      for (int i = 0; i < kSteps; ++i) {
        if (edgellm_step(sequence, &id) == EDGELLM_OK) together[s].push_back(id);
        size_t n = 0;
        edgellm_tokenize(model.get(), kPrompt.data(), kPrompt.size(), 0, nullptr, 0, &n);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(together == alone);
}

TEST_CASE("a second call on a sequence at the same time is refused") {
  const ModelHandle model = open(demo_model());
  const SequenceHandle sequence = sequence_of(model);
  feed(sequence, std::vector<int32_t>(1500, 100));
  std::vector<float> logits(static_cast<size_t>(edgellm_model_vocab(model.get())));
  std::atomic<bool> done{false};
  edgellm_status status = -1;
  std::thread worker([&] {
    // Refused itself where it comes while the other thread's short call is under way.
    do {
      status = edgellm_logits(sequence.get(), logits.data(), logits.size());
    } while (status == EDGELLM_ERROR_USAGE);
    done = true;
  });
  bool was_refused = false;
  std::string message;
  while (!done && !was_refused) {
    const int32_t id = 1;
    was_refused = edgellm_feed_ids(sequence.get(), &id, 0) == EDGELLM_ERROR_USAGE;
    if (was_refused) message = edgellm_last_error();
  }
  worker.join();
  CHECK(was_refused);
  CHECK(message.find("in use by another thread") != std::string::npos);
  CHECK(status == EDGELLM_OK);
}

// What the thread sanitizer reports where the length is read from the ids themselves.
TEST_CASE("the length of a sequence can be read while another thread feeds it") {
  const ModelHandle model = open(demo_model());
  const SequenceHandle sequence = sequence_of(model);
  constexpr size_t kIds = 1500;
  std::thread worker([&] {
    for (size_t i = 0; i < kIds; ++i) {
      const int32_t id = 1;
      edgellm_feed_ids(sequence.get(), &id, 1);
    }
  });
  size_t length = 0;
  bool grows = true;
  while (length < kIds) {
    const size_t now = edgellm_sequence_length(sequence.get());
    grows = grows && now >= length && now <= kIds;
    length = now;
  }
  worker.join();
  CHECK(grows);
}

TEST_CASE("a model may be closed before its sequences") {
  ModelHandle model = open(demo_model());
  const SequenceHandle sequence = prompted(model);
  const std::vector<int32_t> first = steps(sequence, 3);
  model.reset();
  const std::vector<int32_t> more = steps(sequence, 3);
  const auto expected = run_prompt({"-n", "6"})["token_ids"].get<std::vector<int32_t>>();
  CHECK(std::vector<int32_t>(expected.begin() + 3, expected.end()) == more);
}

TEST_CASE("a context that is full is said, and the sequence stays as it was") {
  edgellm_model_options options = cpu_options();
  options.context = 8;
  const ModelHandle model = open(demo_model(), options);
  CHECK(edgellm_model_context(model.get()) == 8);
  const SequenceHandle sequence = sequence_of(model);
  check_fails(edgellm_feed_ids(sequence.get(), std::vector<int32_t>(9, 1).data(), 9),
              EDGELLM_ERROR_CONTEXT, "context of 8");
  CHECK(edgellm_sequence_length(sequence.get()) == 0);
  feed(sequence, {1, 2, 3, 4, 5, 6, 7});
  const std::vector<int32_t> last = steps(sequence, 1);
  int32_t id = -1;
  ok(edgellm_next_id(sequence.get(), &id));
  const int32_t next = id;
  id = -7;
  check_fails(edgellm_step(sequence.get(), &id), EDGELLM_ERROR_CONTEXT, "truncate");
  CHECK(id == -7);
  CHECK(edgellm_sequence_length(sequence.get()) == 8);
  ok(edgellm_next_id(sequence.get(), &id));
  CHECK(id == next);
}

TEST_CASE("ids and results that there are not") {
  const ModelHandle model = open(demo_model());
  const SequenceHandle sequence = sequence_of(model);
  const int32_t vocab = edgellm_model_vocab(model.get());
  for (const int32_t bad : {-1, vocab, INT32_MAX, INT32_MIN}) {
    const std::vector<int32_t> ids = {1, bad};
    check_fails(edgellm_feed_ids(sequence.get(), ids.data(), 2), EDGELLM_ERROR_USAGE,
                "outside the model's vocabulary");
  }
  CHECK(edgellm_sequence_length(sequence.get()) == 0);
  int32_t id = -7;
  std::vector<float> logits(static_cast<size_t>(vocab), 7);
  check_fails(edgellm_step(sequence.get(), &id), EDGELLM_ERROR_USAGE, "is empty");
  check_fails(edgellm_next_id(sequence.get(), &id), EDGELLM_ERROR_USAGE, "is empty");
  check_fails(edgellm_logits(sequence.get(), logits.data(), logits.size()), EDGELLM_ERROR_USAGE,
              "is empty");
  CHECK(id == -7);
  feed(sequence, {1});
  check_fails(edgellm_logits(sequence.get(), logits.data(), logits.size() - 1),
              EDGELLM_ERROR_BUFFER, "the vocabulary has");
  CHECK(logits.front() == 7);
  check_fails(edgellm_sequence_truncate(sequence.get(), 2), EDGELLM_ERROR_USAGE, "cannot be cut");
}

TEST_CASE("NULL is refused or harmless") {
  const ModelHandle model = open(demo_model());
  const SequenceHandle sequence = sequence_of(model);
  edgellm_model* no_model = nullptr;
  size_t n = 0;
  int32_t id = 0;
  float logit = 0;
  const auto refused = [](edgellm_status status) { check_fails(status, EDGELLM_ERROR_USAGE, ""); };
  refused(edgellm_model_open(nullptr, nullptr, &no_model));
  refused(edgellm_model_open("x", nullptr, nullptr));
  refused(edgellm_sequence_create(nullptr, nullptr));
  refused(edgellm_sequence_create(model.get(), nullptr));
  refused(edgellm_tokenize(nullptr, "x", 1, 0, nullptr, 0, &n));
  refused(edgellm_tokenize(model.get(), nullptr, 1, 0, nullptr, 0, &n));
  refused(edgellm_tokenize(model.get(), "x", 1, 0, nullptr, 1, &n));
  refused(edgellm_tokenize(model.get(), "x", 1, 0, nullptr, 0, nullptr));
  refused(edgellm_detokenize(model.get(), nullptr, 1, nullptr, 0, &n));
  refused(edgellm_detokenize(model.get(), &id, 1, nullptr, 1, &n));
  refused(edgellm_detokenize(model.get(), &id, 1, nullptr, 0, nullptr));
  refused(edgellm_feed_ids(nullptr, &id, 1));
  refused(edgellm_feed_ids(sequence.get(), nullptr, 1));
  refused(edgellm_feed_text(sequence.get(), nullptr, 1, 0));
  refused(edgellm_logits(nullptr, &logit, 1));
  refused(edgellm_logits(sequence.get(), nullptr, 1 << 20));
  refused(edgellm_sequence_truncate(nullptr, 0));
  refused(edgellm_sequence_set_sampling(nullptr, nullptr));
  refused(edgellm_next_id(nullptr, &id));
  refused(edgellm_next_id(sequence.get(), nullptr));
  refused(edgellm_step(sequence.get(), nullptr));
  edgellm_model_close(nullptr);
  edgellm_sequence_free(nullptr);
  CHECK(edgellm_model_vocab(nullptr) == 0);
  CHECK(edgellm_model_context(nullptr) == 0);
  CHECK(std::string(edgellm_model_device(nullptr)).empty());
  CHECK(std::string(edgellm_model_note(nullptr)).empty());
  CHECK(edgellm_model_is_stop_id(nullptr, 0) == 0);
  CHECK(edgellm_sequence_length(nullptr) == 0);
}

TEST_CASE("options that cannot be used") {
  setenv("CUDA_VISIBLE_DEVICES", "", 1);  // the same on a machine with a GPU
  const auto refused = [](edgellm_status status, const std::string& part, auto&& change) {
    edgellm_model_options options = cpu_options();
    change(options);
    edgellm_model* model = nullptr;
    check_fails(edgellm_model_open(demo_model().c_str(), &options, &model), status, part);
    CHECK(model == nullptr);
  };
  refused(EDGELLM_ERROR_USAGE, "struct_size is 0", [](auto& o) { o.struct_size = 0; });
  refused(EDGELLM_ERROR_USAGE, "struct_size is 16", [](auto& o) { o.struct_size = 16; });
  refused(EDGELLM_ERROR_USAGE, "struct_size", [](auto& o) { o.struct_size = SIZE_MAX; });
  refused(EDGELLM_ERROR_USAGE, "unknown device gpu", [](auto& o) { o.device = "gpu"; });
  refused(EDGELLM_ERROR_USAGE, "unknown device", [](auto& o) { o.device = ""; });
  refused(EDGELLM_ERROR_DEVICE, "cuda", [](auto& o) { o.device = "cuda"; });
  refused(EDGELLM_ERROR_USAGE, "threads is -1", [](auto& o) { o.threads = -1; });
  refused(EDGELLM_ERROR_USAGE, "threads is 99999", [](auto& o) { o.threads = 99999; });
  refused(EDGELLM_ERROR_USAGE, "context is -1", [](auto& o) { o.context = -1; });
  refused(EDGELLM_ERROR_USAGE, "at most -c 2048", [](auto& o) { o.context = 4096; });
  refused(EDGELLM_ERROR_USAGE, "kv_type is 3", [](auto& o) { o.kv_type = 3; });
  refused(EDGELLM_ERROR_USAGE, "max_sequences is -1", [](auto& o) { o.max_sequences = -1; });
  refused(EDGELLM_ERROR_USAGE, "prefill_chunk", [](auto& o) { o.prefill_chunk = 1 << 20; });

  // The struct of a newer header: fine where what this library does not know is not used.
  struct {
    edgellm_model_options known = cpu_options();
    int64_t newer = 0;
  } options;
  options.known.struct_size = sizeof options;
  edgellm_model* model = nullptr;
  ok(edgellm_model_open(demo_model().c_str(), &options.known, &model));
  edgellm_model_close(model);
  options.newer = 1;
  check_fails(edgellm_model_open(demo_model().c_str(), &options.known, &model),
              EDGELLM_ERROR_UNSUPPORTED, "does not know");
}

TEST_CASE("files that are no model have the exit codes of the program") {
  const TempDir folder;
  const std::string good = read_file(demo_model());
  const auto refused = [&](const std::string& path, edgellm_status status) {
    const edgellm_model_options options = cpu_options();
    edgellm_model* model = nullptr;
    check_fails(edgellm_model_open(path.c_str(), &options, &model), status, path);
    CHECK(run({"verify", path}).exit_code == status);
  };
  const auto damaged = [&](const std::string& bytes, edgellm_status status) {
    refused(write_file(folder, "bad.tmac2", bytes), status);
  };
  refused("/nowhere/m.tmac2", EDGELLM_ERROR_MODEL_FILE);
  refused(folder.path().string(), EDGELLM_ERROR_MODEL_FILE);
  damaged("", EDGELLM_ERROR_MODEL_FILE);
  damaged(good.substr(0, good.size() / 2), EDGELLM_ERROR_MODEL_FILE);
  std::string changed = good;
  changed[8] = 2;
  damaged(changed, EDGELLM_ERROR_UNSUPPORTED);
  changed = good;
  changed[good.size() - 100'000] ^= 1;
  damaged(changed, EDGELLM_ERROR_MODEL_FILE);
  edgellm_model_options options = cpu_options();
  options.no_verify = 1;
  open(folder / "bad.tmac2", options);
}

TEST_CASE("a model without a tokenizer takes and gives ids only") {
  const TempDir folder;
  const ModelHandle model = open(tiny_model(folder));
  const SequenceHandle sequence = sequence_of(model);
  size_t n = 0;
  check_fails(edgellm_feed_text(sequence.get(), "x", 1, 0), EDGELLM_ERROR_USAGE, "no tokenizer");
  const int32_t id = 1;
  check_fails(edgellm_detokenize(model.get(), &id, 1, nullptr, 0, &n), EDGELLM_ERROR_USAGE,
              "no tokenizer");
  feed(sequence, {1, 2, 3});
  CHECK(steps(sequence, 3).size() == 3);
}

TEST_CASE("the message of an error belongs to its thread") {
  edgellm_model* model = nullptr;
  check_fails(edgellm_model_open("/nowhere/here", nullptr, &model), EDGELLM_ERROR_MODEL_FILE,
              "/nowhere/here");
  std::string of_other = "?";
  std::thread([&] { of_other = edgellm_last_error(); }).join();
  CHECK(of_other.empty());
  // A path longer than any buffer.
  const std::string path(100'000, 'x');
  check_fails(edgellm_model_open(path.c_str(), nullptr, &model), EDGELLM_ERROR_MODEL_FILE, "xxx");
}

TEST_CASE("the caller's float environment changes no result, and is given back") {
  const ModelHandle model = open(demo_model());
  SequenceHandle sequence = prompted(model);
  const std::vector<float> expected = logits_of(sequence, model);
  sequence.reset();
  sequence = prompted(model);
  std::vector<float> logits(expected.size());

  const unsigned before = float_control();
  set_float_control(before | kSubnormalsAreZero);
  std::fesetround(FE_UPWARD);
  const edgellm_status status = edgellm_logits(sequence.get(), logits.data(), logits.size());
  const int rounding = std::fegetround();
  std::fesetround(FE_TONEAREST);
  const unsigned after = float_control();
  set_float_control(before);
  CHECK((after & kSubnormalsAreZero) == kSubnormalsAreZero);
  ok(status);
  CHECK(rounding == FE_UPWARD);
  CHECK(logits == expected);
}

}  // namespace
}  // namespace edgellm::test
