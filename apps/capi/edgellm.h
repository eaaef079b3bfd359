/*
 * edgellm's C interface: open a model, feed a sequence ids or text, read logits or the next id.
 * docs/c_api.md is the guide; apps/capi/examples/ has a program in C and one in Python.
 *
 * Errors. Functions that can fail return an edgellm_status: EDGELLM_OK or a positive code, the exit
 * code of the `edgellm` program where it has one. edgellm_last_error() has the message. A call that
 * failed has changed nothing and written to none of its outputs, except where its comment says so.
 *
 * Threads. Any number of threads may use one model at the same time; computing calls on sequences
 * of one model take turns. A sequence belongs to one call at a time, from any thread: a second one
 * at the same time gets EDGELLM_ERROR_USAGE. Only edgellm_sequence_length() may be
 * called meanwhile; it gives the length before or after that call. Releasing an object must not
 * overlap with another use of it. A process that has opened a model must not use it in a child
 * after fork().
 *
 * Versions. Within one EDGELLM_ABI_VERSION, which is the number in the library's soname, functions,
 * options at the end of a struct, status codes and flag bits may be added; nothing else changes.
 *
 * The library installs no signal handlers and writes to no stream.
 */
#ifndef EDGELLM_H
#define EDGELLM_H

#include <stddef.h>
#include <stdint.h>

#define EDGELLM_ABI_VERSION 1

#if defined(__GNUC__)
#define EDGELLM_API __attribute__((visibility("default")))
#else
#define EDGELLM_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef int32_t edgellm_status;
enum {
  EDGELLM_OK = 0,
  EDGELLM_ERROR_RUNTIME = 1, /* input/output, memory, a value that is not finite, our own fault */
  EDGELLM_ERROR_USAGE = 2,   /* an argument is wrong */
  EDGELLM_ERROR_MODEL_FILE = 3,  /* the model file is missing, damaged or unreadable */
  EDGELLM_ERROR_UNSUPPORTED = 4, /* recognised, but not supported */
  EDGELLM_ERROR_DEVICE = 5,      /* no device memory, or no usable GPU where one was asked for */
  EDGELLM_ERROR_CONTEXT = 6,     /* the ids do not fit the context */
  EDGELLM_ERROR_BUFFER = 64      /* the caller's buffer is too small; the size needed was written */
};

/* --- the library --------------------------------------------------------------------------- */

/* Of the library that is loaded: "0.1.0", and its EDGELLM_ABI_VERSION. */
EDGELLM_API const char* edgellm_version(void);
EDGELLM_API int32_t edgellm_abi_version(void);

/* What went wrong in the last call of this thread that failed: one line of UTF-8, "" where none
 * did. Valid until the next call of this thread. Where it names an option of the program (-c,
 * --threads), the member of that name in edgellm_model_options is meant. */
EDGELLM_API const char* edgellm_last_error(void);

/* --- models -------------------------------------------------------------------------------- */

typedef struct edgellm_model edgellm_model;

/* Codes of 16 or 8 bits, or float32. 0 was half precision in earlier libraries, EDGELLM_KV_F16;
 * i16 took its place. */
enum { EDGELLM_KV_I16 = 0, EDGELLM_KV_F32 = 1, EDGELLM_KV_I8 = 2 };

/* Zero, or NULL, is the default of every member but struct_size. */
typedef struct edgellm_model_options {
  size_t struct_size;    /* sizeof(edgellm_model_options): says which members the caller knows */
  const char* device;    /* "auto" (default), "cpu", "cuda" or "cuda:N" */
  int32_t threads;       /* CPU threads; default: one per core this process may use */
  int32_t context;       /* positions of a sequence; default: the model's maximum */
  int32_t kv_type;       /* EDGELLM_KV_I16 (default), EDGELLM_KV_I8 or EDGELLM_KV_F32 */
  int32_t max_sequences; /* that can exist at the same time; default: 1 */
  int32_t prefill_chunk; /* ids of one pass; default: 256, on a GPU 2048. Changes speed and memory,
                          * no result */
  int32_t no_verify;     /* not 0: do not check the hashes of the file's contents */
} edgellm_model_options;

/* Opens the .tmac2 file `path` and makes it ready on the device. `options` may be NULL.
 * While a model is open its file must be neither changed nor shortened: it is mapped, and reading
 * what is no longer there raises SIGBUS, as with any mapping. Replacing it by rename() is safe. */
EDGELLM_API edgellm_status edgellm_model_open(const char* path,
                                              const edgellm_model_options* options,
                                              edgellm_model** model);

/* NULL is allowed. What the model holds is freed with the last of its sequences. */
EDGELLM_API void edgellm_model_close(edgellm_model* model);

EDGELLM_API int32_t edgellm_model_vocab(const edgellm_model* model);   /* ids are 0 to vocab - 1 */
EDGELLM_API int32_t edgellm_model_context(const edgellm_model* model); /* positions of a sequence */
/* Where it runs: "cpu (AMD EPYC 9654, avx512, 2 threads)". Valid as long as the model. */
EDGELLM_API const char* edgellm_model_device(const edgellm_model* model);
/* What device "auto" has to say about its choice, for example why not the GPU; "" where nothing. */
EDGELLM_API const char* edgellm_model_note(const edgellm_model* model);
/* 1 where `id` ends an answer, else 0. */
EDGELLM_API int32_t edgellm_model_is_stop_id(const edgellm_model* model, int32_t id);

/* --- text ---------------------------------------------------------------------------------- */

/* Flags of edgellm_tokenize() and edgellm_feed_text(). */
enum {
  EDGELLM_TEXT_PLAIN = 0,
  EDGELLM_TEXT_PROMPT = 1 /* as the start of a prompt: with what the tokenizer's template adds, and
                             a BOS where the model asks for one */
};

/* The ids of `text`, which is UTF-8 of `text_bytes` bytes. Special-token strings in it become their
 * ids. *n_ids gets their number. With `ids` NULL and `capacity` 0 that is all; with too small a
 * capacity it is EDGELLM_ERROR_BUFFER. */
EDGELLM_API edgellm_status edgellm_tokenize(const edgellm_model* model, const char* text,
                                            size_t text_bytes, uint32_t flags, int32_t* ids,
                                            size_t capacity, size_t* n_ids);

/* The text of `ids`, without special tokens; *text_bytes gets its length. No zero byte is added.
 * Buffers as above. The text of part of an answer may end or begin inside a UTF-8 character. */
EDGELLM_API edgellm_status edgellm_detokenize(const edgellm_model* model, const int32_t* ids,
                                              size_t n_ids, char* text, size_t capacity,
                                              size_t* text_bytes);

/* --- sequences ----------------------------------------------------------------------------- */

/* The ids fed so far and what the model has computed from them. */
typedef struct edgellm_sequence edgellm_sequence;

EDGELLM_API edgellm_status edgellm_sequence_create(edgellm_model* model,
                                                   edgellm_sequence** sequence);
EDGELLM_API void edgellm_sequence_free(edgellm_sequence* sequence); /* NULL is allowed */

/* Appends ids, or those of a text. Nothing is computed before a result is asked for. */
EDGELLM_API edgellm_status edgellm_feed_ids(edgellm_sequence* sequence, const int32_t* ids,
                                            size_t n_ids);
EDGELLM_API edgellm_status edgellm_feed_text(edgellm_sequence* sequence, const char* text,
                                             size_t text_bytes, uint32_t flags);

/* The number of ids fed, and going back to the first `n_ids` of them: what was computed for those
 * is kept. */
EDGELLM_API size_t edgellm_sequence_length(const edgellm_sequence* sequence);
EDGELLM_API edgellm_status edgellm_sequence_truncate(edgellm_sequence* sequence, size_t n_ids);

/* The logits after the last id: float32 [vocab], `capacity` counts floats. */
EDGELLM_API edgellm_status edgellm_logits(edgellm_sequence* sequence, float* logits,
                                          size_t capacity);

/* How the next id is chosen; the steps and their order are those of `edgellm run` (docs/cli.md).
 * All zero is greedy: the most probable id, the lowest of equal ones. */
typedef struct edgellm_sampling_options {
  size_t struct_size;    /* sizeof(edgellm_sampling_options) */
  double temperature;    /* 0: greedy */
  double top_p;          /* above 0 and at most 1; 0 and 1: off */
  double min_p;          /* from 0 to 1; 0: off */
  double repeat_penalty; /* from 0.01 to 100; 0 and 1: off */
  uint64_t seed;         /* the same seed, options and ids give the same next id on every device */
  int32_t top_k;         /* 0: off */
  int32_t ban_stop_ids;  /* not 0: never choose an id that ends an answer */
} edgellm_sampling_options;

/* Holds from now on; NULL sets the default. */
EDGELLM_API edgellm_status edgellm_sequence_set_sampling(edgellm_sequence* sequence,
                                                         const edgellm_sampling_options* options);

/* Chooses the id that comes next, without feeding it: asked again, it is the same. */
EDGELLM_API edgellm_status edgellm_next_id(edgellm_sequence* sequence, int32_t* id);

/* Chooses the next id and feeds it. An id that ends the answer is fed like any other: ask
 * edgellm_model_is_stop_id(). */
EDGELLM_API edgellm_status edgellm_step(edgellm_sequence* sequence, int32_t* id);

#ifdef __cplusplus
}
#endif

#endif
