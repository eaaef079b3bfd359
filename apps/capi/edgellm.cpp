// The C functions: arguments checked, exceptions turned into codes, nothing more.
#include "apps/capi/edgellm.h"

#include <algorithm>
#include <array>
#include <cfenv>
#include <climits>
#include <cstring>
#include <new>

#include "apps/capi/sequence.h"
#include "base/error.h"
#include "base/text.h"
#include "kernels/cpu/machine.h"

using namespace edgellm;

struct edgellm_model {
  std::shared_ptr<capi::LoadedModel> loaded;
};

struct edgellm_sequence {
  capi::Sequence sequence;
};

namespace {

// The codes of both are the same numbers; a new one of the program needs a place in the header.
static_assert(EDGELLM_ERROR_RUNTIME == static_cast<int>(ExitCode::kRuntime));
static_assert(EDGELLM_ERROR_USAGE == static_cast<int>(ExitCode::kUsage));
static_assert(EDGELLM_ERROR_MODEL_FILE == static_cast<int>(ExitCode::kModelFile));
static_assert(EDGELLM_ERROR_UNSUPPORTED == static_cast<int>(ExitCode::kUnsupported));
static_assert(EDGELLM_ERROR_DEVICE == static_cast<int>(ExitCode::kDevice));
static_assert(EDGELLM_ERROR_CONTEXT == static_cast<int>(ExitCode::kPromptDoesNotFit));

constexpr int kMaxSequences = 4096;

// A plain array: no allocation can fail while an error is reported, and no destructor keeps the
// library from being unloaded. Room for a path of the greatest length.
thread_local std::array<char, 2 * PATH_MAX> t_last_error;

edgellm_status fail(edgellm_status status, const char* message, const char* before = "") noexcept {
  try {
    // In one line: the message may quote control characters.
    const std::string line = printable_path(std::string(before) + message);
    const size_t n = std::min(line.size(), t_last_error.size() - 1);
    std::memcpy(t_last_error.data(), line.data(), n);
    t_last_error[n] = '\0';
  } catch (...) {
    constexpr const char kNoMemory[] = "not enough memory";
    std::memcpy(t_last_error.data(), kNoMemory, sizeof kNoMemory);
  }
  return status;
}

struct BufferTooSmall {
  std::string message;
};

// Round to nearest, subnormals kept: the arithmetic is defined so (docs/numerics.md), and the
// caller's thread may have been set otherwise, for example by a library built with -ffast-math.
class FloatEnvironment {
 public:
  FloatEnvironment() {
    std::fegetenv(&callers_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~FloatEnvironment() { std::fesetenv(&callers_); }
  FloatEnvironment(const FloatEnvironment&) = delete;
  FloatEnvironment& operator=(const FloatEnvironment&) = delete;

 private:
  std::fenv_t callers_;
};

// No exception leaves the library.
template <class Body>
edgellm_status guarded(Body&& body) noexcept {
  try {
    const FloatEnvironment environment;
    body();
    return EDGELLM_OK;
  } catch (const BufferTooSmall& error) {
    return fail(EDGELLM_ERROR_BUFFER, error.message.c_str());
  } catch (const Error& error) {
    return fail(static_cast<edgellm_status>(error.code()), error.what());
  } catch (const std::bad_alloc&) {
    return fail(EDGELLM_ERROR_RUNTIME,
                "not enough memory; use a smaller context or a smaller model");
  } catch (const std::exception& error) {
    return fail(EDGELLM_ERROR_RUNTIME, error.what(), "internal error: ");
  } catch (...) {
    return fail(EDGELLM_ERROR_RUNTIME, "internal error");
  }
}

void require_argument(bool good, const char* what) {
  if (!good) throw Error(ExitCode::kUsage, what);
}

// The caller's struct as the one this library knows: members that the caller did not know are zero,
// their default. Members that this library does not know must be zero, or they would be ignored in
// silence. `first_size` is the size of the struct's first version.
template <class Options>
Options known_options(const Options* given, size_t first_size) {
  Options known = {};
  if (given == nullptr) return known;
  size_t size = 0;
  std::memcpy(&size, given, sizeof size);  // the first member
  if (size < first_size || size > 4096) {
    throw Error(ExitCode::kUsage, "struct_size is " + std::to_string(size) + ", expected " +
                                      std::to_string(sizeof known) +
                                      "; set it to the sizeof of the struct");
  }
  const char* bytes = reinterpret_cast<const char*>(given);
  for (size_t i = sizeof known; i < size; ++i) {
    if (bytes[i] != 0) {
      throw Error(ExitCode::kUnsupported,
                  std::string("an option is set that this libedgellm, version ") + EDGELLM_VERSION +
                      ", does not know; use the library of your edgellm.h");
    }
  }
  std::memcpy(&known, given, std::min(size, sizeof known));
  return known;
}

void check_range(const char* name, int32_t value, int32_t low, int32_t high) {
  if (value >= low && value <= high) return;
  throw Error(ExitCode::kUsage, std::string(name) + " is " + std::to_string(value) + ", expected " +
                                    std::to_string(low) + " to " + std::to_string(high) +
                                    " (0: the default)");
}

// The name of an EDGELLM_KV_ value.
const char* kv_type_name(int32_t value) {
  return value == EDGELLM_KV_F32 ? "f32" : value == EDGELLM_KV_I8 ? "i8" : "i16";
}

SessionOptions engine_flags(const edgellm_model_options& options) {
  SessionOptions flags;
  if (options.device != nullptr) flags.device = options.device;
  if (!is_device_name(flags.device)) {
    throw Error(ExitCode::kUsage,
                "unknown device " + flags.device + "; use auto, cpu, cuda or cuda:N");
  }
  check_range("threads", options.threads, 0, kMaxThreads);
  check_range("context", options.context, 0, INT32_MAX);
  check_range("max_sequences", options.max_sequences, 0, kMaxSequences);
  check_range("prefill_chunk", options.prefill_chunk, 0, kMaxPrefillChunk);
  check_range("kv_type", options.kv_type, EDGELLM_KV_I16, EDGELLM_KV_I8);
  flags.threads = options.threads;
  flags.context = options.context;
  flags.prefill_chunk = options.prefill_chunk;
  flags.kv_type = kv_type_name(options.kv_type);
  flags.no_verify = options.no_verify != 0;
  return flags;
}

// Writes the number of `values` and, where the caller gave a buffer, the values.
template <class Value, class Values>
void hand_over(const Values& values, Value* to, size_t capacity, size_t* n_values) {
  *n_values = values.size();
  if (to == nullptr && capacity == 0) return;
  if (values.size() > capacity) {
    throw BufferTooSmall{"the buffer holds " + std::to_string(capacity) + ", " +
                         std::to_string(values.size()) + " are needed"};
  }
  std::copy(values.begin(), values.end(), to);
}

bool is_prompt(uint32_t flags) {
  require_argument((flags & ~uint32_t{EDGELLM_TEXT_PROMPT}) == 0,
                   "a flag is set that this libedgellm does not know");
  return (flags & EDGELLM_TEXT_PROMPT) != 0;
}

std::string_view view_of(const char* text, size_t text_bytes) {
  require_argument(text != nullptr || text_bytes == 0, "the text is NULL");
  return {text_bytes == 0 ? "" : text, text_bytes};
}

std::span<const int32_t> span_of(const int32_t* ids, size_t n_ids) {
  require_argument(ids != nullptr || n_ids == 0, "the array of ids is NULL");
  return {ids, n_ids};
}

// A call on a sequence, of which there is one at a time.
template <class Body>
edgellm_status with(edgellm_sequence* handle, Body&& body) noexcept {
  return guarded([&] {
    require_argument(handle != nullptr, "the sequence is NULL");
    const capi::Sequence::Use use(handle->sequence);
    body(handle->sequence);
  });
}

const capi::LoadedModel& loaded(const edgellm_model* model) {
  require_argument(model != nullptr, "the model is NULL");
  return *model->loaded;
}

}  // namespace

const char* edgellm_version(void) { return EDGELLM_VERSION; }
int32_t edgellm_abi_version(void) { return EDGELLM_ABI_VERSION; }
const char* edgellm_last_error(void) { return t_last_error.data(); }

edgellm_status edgellm_model_open(const char* path, const edgellm_model_options* options,
                                  edgellm_model** model) {
  return guarded([&] {
    require_argument(path != nullptr, "the path is NULL");
    require_argument(model != nullptr, "there is no place for the model");
    // The first version of the struct is the only one so far.
    const edgellm_model_options known = known_options(options, sizeof(edgellm_model_options));
    const SessionOptions flags = engine_flags(known);
    *model = new edgellm_model{std::make_shared<capi::LoadedModel>(
        path, flags, known.max_sequences == 0 ? 1 : known.max_sequences)};
  });
}

void edgellm_model_close(edgellm_model* model) { delete model; }

int32_t edgellm_model_vocab(const edgellm_model* model) {
  return model == nullptr ? 0 : model->loaded->vocab();
}

int32_t edgellm_model_context(const edgellm_model* model) {
  return model == nullptr ? 0 : model->loaded->context();
}

const char* edgellm_model_device(const edgellm_model* model) {
  return model == nullptr ? "" : model->loaded->device().c_str();
}

const char* edgellm_model_note(const edgellm_model* model) {
  return model == nullptr ? "" : model->loaded->note().c_str();
}

int32_t edgellm_model_is_stop_id(const edgellm_model* model, int32_t id) {
  return model != nullptr && model->loaded->is_stop_id(id) ? 1 : 0;
}

edgellm_status edgellm_tokenize(const edgellm_model* model, const char* text, size_t text_bytes,
                                uint32_t flags, int32_t* ids, size_t capacity, size_t* n_ids) {
  return guarded([&] {
    require_argument(n_ids != nullptr, "there is no place for the number of ids");
    require_argument(ids != nullptr || capacity == 0, "the array of ids is NULL");
    hand_over(loaded(model).encode(view_of(text, text_bytes), is_prompt(flags)), ids, capacity,
              n_ids);
  });
}

edgellm_status edgellm_detokenize(const edgellm_model* model, const int32_t* ids, size_t n_ids,
                                  char* text, size_t capacity, size_t* text_bytes) {
  return guarded([&] {
    require_argument(text_bytes != nullptr, "there is no place for the length of the text");
    require_argument(text != nullptr || capacity == 0, "the buffer of the text is NULL");
    hand_over(loaded(model).tokenizer().decode(span_of(ids, n_ids), /*skip_special=*/true), text,
              capacity, text_bytes);
  });
}

edgellm_status edgellm_sequence_create(edgellm_model* model, edgellm_sequence** sequence) {
  return guarded([&] {
    require_argument(sequence != nullptr, "there is no place for the sequence");
    loaded(model);
    *sequence = new edgellm_sequence{capi::Sequence(model->loaded)};
  });
}

void edgellm_sequence_free(edgellm_sequence* sequence) { delete sequence; }

edgellm_status edgellm_feed_ids(edgellm_sequence* sequence, const int32_t* ids, size_t n_ids) {
  return with(sequence, [&](capi::Sequence& s) { s.feed(span_of(ids, n_ids)); });
}

edgellm_status edgellm_feed_text(edgellm_sequence* sequence, const char* text, size_t text_bytes,
                                 uint32_t flags) {
  return with(sequence, [&](capi::Sequence& s) {
    s.feed(s.model().encode(view_of(text, text_bytes), is_prompt(flags)));
  });
}

size_t edgellm_sequence_length(const edgellm_sequence* sequence) {
  return sequence == nullptr ? 0 : sequence->sequence.length();
}

edgellm_status edgellm_sequence_truncate(edgellm_sequence* sequence, size_t n_ids) {
  return with(sequence, [&](capi::Sequence& s) { s.truncate(n_ids); });
}

edgellm_status edgellm_logits(edgellm_sequence* sequence, float* logits, size_t capacity) {
  return with(sequence, [&](capi::Sequence& s) {
    require_argument(logits != nullptr, "there is no place for the logits");
    const auto vocab = static_cast<size_t>(s.model().vocab());
    if (capacity < vocab) {
      throw BufferTooSmall{"the buffer holds " + std::to_string(capacity) +
                           " floats, the vocabulary has " + std::to_string(vocab)};
    }
    const std::vector<float>& values = s.logits();
    std::copy(values.begin(), values.end(), logits);
  });
}

edgellm_status edgellm_sequence_set_sampling(edgellm_sequence* sequence,
                                             const edgellm_sampling_options* options) {
  return with(sequence, [&](capi::Sequence& s) {
    const edgellm_sampling_options known = known_options(options, sizeof(edgellm_sampling_options));
    SamplingOptions sampling;
    sampling.temperature = known.temperature;
    sampling.top_k = known.top_k;
    if (known.top_p != 0) sampling.top_p = known.top_p;
    sampling.min_p = known.min_p;
    if (known.repeat_penalty != 0) sampling.repeat_penalty = known.repeat_penalty;
    sampling.seed = known.seed;
    s.set_sampling(sampling, known.ban_stop_ids != 0);
  });
}

edgellm_status edgellm_next_id(edgellm_sequence* sequence, int32_t* id) {
  return with(sequence, [&](capi::Sequence& s) {
    require_argument(id != nullptr, "there is no place for the id");
    *id = s.next_id();
  });
}

edgellm_status edgellm_step(edgellm_sequence* sequence, int32_t* id) {
  return with(sequence, [&](capi::Sequence& s) {
    require_argument(id != nullptr, "there is no place for the id");
    *id = s.step();
  });
}
