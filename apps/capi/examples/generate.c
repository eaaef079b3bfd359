/*
 * Continues a prompt, text to standard output as it comes.
 *
 *     cc generate.c $(pkg-config --cflags --libs edgellm) \
 *       -Wl,-rpath,$(pkg-config --variable=libdir edgellm) -o generate
 *     ./generate model.tmac2 "Once upon a time" 100
 */
#include <edgellm.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Ends the program with the code that `edgellm` would end with. */
static void check(edgellm_status status) {
  if (status == EDGELLM_OK) return;
  fprintf(stderr, "generate: %s\n", edgellm_last_error());
  exit(status);
}

int main(int argc, char** argv) {
  edgellm_model* model = NULL;
  edgellm_sequence* sequence = NULL;
  edgellm_model_options options = {0};
  long n_left = argc > 3 ? strtol(argv[3], NULL, 10) : 100;

  if (argc < 3) {
    fprintf(stderr, "usage: generate MODEL PROMPT [N]\n");
    return EDGELLM_ERROR_USAGE;
  }
  if (edgellm_abi_version() != EDGELLM_ABI_VERSION) {
    fprintf(stderr, "generate: built for another version of libedgellm\n");
    return EDGELLM_ERROR_UNSUPPORTED;
  }

  options.struct_size = sizeof options;
  check(edgellm_model_open(argv[1], &options, &model));
  check(edgellm_sequence_create(model, &sequence));
  check(edgellm_feed_text(sequence, argv[2], strlen(argv[2]), EDGELLM_TEXT_PROMPT));

  while (n_left-- > 0) {
    char text[256]; /* far more than the bytes of one id */
    size_t n_bytes = 0;
    int32_t id = 0;
    edgellm_status status = edgellm_step(sequence, &id);
    if (status == EDGELLM_ERROR_CONTEXT) break;
    check(status);
    if (edgellm_model_is_stop_id(model, id)) break;
    check(edgellm_detokenize(model, &id, 1, text, sizeof text, &n_bytes));
    fwrite(text, 1, n_bytes, stdout);
    fflush(stdout);
  }

  edgellm_sequence_free(sequence);
  edgellm_model_close(model);
  return ferror(stdout) ? EDGELLM_ERROR_RUNTIME : EDGELLM_OK;
}
