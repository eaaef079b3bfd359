#include "model/import/older_file.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/text.h"
#include "model/import/file_cursor.h"

namespace edgellm::model_io {
namespace {

constexpr std::string_view kTm2Magic("TM2\0", 4);
constexpr std::string_view kTmacMagic("TMAC", 4);

}  // namespace

std::optional<OlderFormat> older_format(std::string_view head) {
  if (head.starts_with(kTm2Magic)) return OlderFormat::kTm2;
  // "TMAC2" begins our own files; the version that follows "TMAC" in an older
  // one is no digit.
  if (head.starts_with(kTmacMagic) && !head.starts_with("TMAC2")) return OlderFormat::kTmac;
  return std::nullopt;
}

OlderHeader read_older_header(const InputFile& file) {
  FileCursor cursor(file, kTm2Magic.size());
  OlderHeader header;
  std::string head(static_cast<size_t>(std::min<uint64_t>(8, file.size())), '\0');
  file.read(0, head.data(), head.size());
  const auto format = older_format(head);
  if (!format) fail_file(file.path(), "begins neither with TM2 nor with TMAC");
  header.format = *format;
  if (header.format == OlderFormat::kTm2) {
    for (int64_t* size : {&header.dim, &header.ffn, &header.layers, &header.heads, &header.kv_heads,
                          &header.vocab, &header.max_context}) {
      *size = cursor.read<int32_t>("the header");
    }
    // A negative vocabulary is how llama2.c and its kin say that the head is a
    // matrix of its own; here there is always one.
    header.vocab = std::abs(header.vocab);
  } else {
    const auto version = cursor.read<uint32_t>("the header");
    if (version != 2) {
      throw Error(ExitCode::kUnsupported, printable_path(file.path()) +
                                              " is a TMAC file of version " +
                                              std::to_string(version) + "; supported is 2");
    }
    for (int64_t* size : {&header.dim, &header.layers, &header.heads, &header.vocab}) {
      *size = cursor.read<uint32_t>("the header");
    }
    const auto bits = cursor.read<uint32_t>("the header");
    if (bits != 2) {
      throw Error(ExitCode::kUnsupported, printable_path(file.path()) + " has weights of " +
                                              std::to_string(bits) +
                                              " bits; supported is 2 (ternary)");
    }
    cursor.read<uint32_t>("the header");  // group: of that program's look-up tables
  }
  header.bytes = cursor.at();
  return header;
}

HfConfig older_config(const InputFile& file, const OlderHeader& header,
                      const std::string& config_path, const std::vector<std::string>& ignore_keys) {
  const auto size = [&](const char* name, int64_t value) {
    if (value < 1 || value > INT32_MAX) {
      fail_in_file(file.path(), std::string("its header says ") + name + " = " +
                                    std::to_string(value) + ", expected at least 1");
    }
    return static_cast<int>(value);
  };
  if (config_path.empty()) {
    if (header.format == OlderFormat::kTmac) {
      throw Error(ExitCode::kUsage, printable_path(file.path()) +
                                        ": a TMAC file does not say how its model computes; add "
                                        "--config with the "
                                        "config.json of the model it was made from");
    }
    HfConfig config;
    ModelConfig& model = config.model;
    model.architecture = "BitNetForCausalLM";
    model.dim = size("dim", header.dim);
    model.ffn = size("hidden_dim", header.ffn);
    model.layers = size("n_layers", header.layers);
    model.heads = size("n_heads", header.heads);
    model.kv_heads = size("n_kv_heads", header.kv_heads);
    model.vocab = size("vocab_size", header.vocab);
    model.max_context = size("seq_len", header.max_context);
    if (model.dim % model.heads != 0) {
      fail_in_file(file.path(), "its header says dim = " + std::to_string(model.dim) +
                                    " and n_heads = " + std::to_string(model.heads) +
                                    ", expected a multiple");
    }
    model.head_dim = model.dim / model.heads;
    model.act = Activation::kRelu2;
    model.attn_sub_norm = true;
    model.ffn_sub_norm = true;
    model.norm_eps = 1e-5f;
    model.rope_theta = 500000;
    try {
      validate(model);
    } catch (const Error& error) {
      throw Error(error.code(), printable_path(file.path()) + ": " + error.what());
    }
    return config;
  }

  HfConfig config = read_hf_config(config_path, ignore_keys, WeightsKnown::kTernary);
  const ModelConfig& model = config.model;
  const auto compare = [&](const char* name, int64_t in_file, int64_t in_config) {
    if (in_file == in_config) return;
    fail_in_file(file.path(), std::string("its header says ") + name + " = " +
                                  std::to_string(in_file) + ", " + printable_path(config_path) +
                                  " says " + std::to_string(in_config) +
                                  "; give the config.json of this model");
  };
  compare("hidden size", header.dim, model.dim);
  compare("layers", header.layers, model.layers);
  compare("heads", header.heads, model.heads);
  compare("vocabulary", header.vocab, model.vocab);
  if (header.format == OlderFormat::kTm2) {
    compare("hidden_dim", header.ffn, model.ffn);
    compare("n_kv_heads", header.kv_heads, model.kv_heads);
    if (!model.attn_sub_norm || !model.ffn_sub_norm) {
      throw Error(ExitCode::kUnsupported, printable_path(file.path()) +
                                              ": every layer of a TM2 file has sub-norms, a " +
                                              model.architecture + " has none");
    }
  }
  return config;
}

}  // namespace edgellm::model_io
