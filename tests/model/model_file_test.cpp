#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <fstream>
#include <random>

#include "base/files.h"
#include "model/float_bits.h"
#include "model/model_file_impl.h"
#include "tests/model/test_model.h"

using namespace edgellm;
using namespace edgellm::test;

namespace {

void expect_bad(const std::string& bytes, ExitCode code, const std::vector<std::string>& texts) {
  const TempDir temp;
  write_file(temp / "bad.tmac2", bytes);
  std::vector<std::string> all = texts;
  all.push_back("bad.tmac2");
  expect_error(code, all, [&] { ModelFile::open(temp / "bad.tmac2").verify_contents(); });
}

void expect_bad(const std::string& bytes, const std::string& text) {
  expect_bad(bytes, ExitCode::kModelFile, {text});
}

// Opens and verifies; true where that worked, false where it threw Error. Anything else escapes.
bool opens(const std::string& bytes) {
  const TempDir temp;
  write_file(temp / "model.tmac2", bytes);
  try {
    ModelFile::open(temp / "model.tmac2").verify_contents();
    return true;
  } catch (const Error&) {
    return false;
  }
}

using Change = std::function<void(Json&)>;

}  // namespace

TEST_CASE("open: what is not a model file is told by name") {
  const std::string tail(100, 'x');
  expect_bad("", "is empty");
  expect_bad("TMAC", "cut off inside the header");
  expect_bad("TMAC2\r\n\x1A" + std::string(5, '\0'), "cut off inside the header");
  expect_bad(std::string("TM2\0", 4) + tail, "older .tmac2");
  expect_bad("TMAC" + std::string(1, '\0') + tail,
             "which is converted before it runs; type: edgellm convert");
  expect_bad("TMAC2\n\x1A" + tail, "copied as text");
  expect_bad("GGUF" + tail, "GGUF");
  expect_bad("PK\x03\x04" + tail, "zip");
  expect_bad(safetensors_bytes({{"a", f32_tensor({1}, {1})}}) + tail, "safetensors");
  expect_bad("hello, world" + tail, "wrong magic");
}

TEST_CASE("open: paths that are no readable file") {
  const TempDir temp;
  const auto open = [&](const std::string& name) {
    return [path = temp / name] { ModelFile::open(path); };
  };
  expect_error(ExitCode::kModelFile, {"absent", "no such file"}, open("absent"));
  expect_error(ExitCode::kModelFile, {"is a folder", "edgellm convert"}, open(""));
  REQUIRE(::mkfifo((temp / "fifo").c_str(), 0600) == 0);
  expect_error(ExitCode::kModelFile, {"not a regular file"}, open("fifo"));
  write_file(temp / "line\nbreak", "x");
  expect_error(ExitCode::kModelFile, {"line\\x0abreak"}, open("line\nbreak"));
  if (::geteuid() != 0) {
    write_file(temp / "secret", "x");
    ::chmod((temp / "secret").c_str(), 0);
    expect_error(ExitCode::kModelFile, {"cannot be opened"}, open("secret"));
  }
}

TEST_CASE("open: header fields are checked") {
  const std::string good = tiny_model_bytes();
  CHECK(opens(good));
  const auto with_bytes = [&](size_t at, uint64_t value, size_t n) {
    std::string bad = good;
    std::memcpy(bad.data() + at, &value, n);
    return bad;
  };
  expect_bad(with_bytes(8, 2, 4), ExitCode::kUnsupported, {"version 2", "made by a newer edgellm"});
  expect_bad(with_bytes(8, 0xFFFFFFFF, 4), ExitCode::kUnsupported, {"newer edgellm"});
  expect_bad(with_bytes(8, 0, 4), "version 0");
  expect_bad(with_bytes(12, 1, 4), "reserved");
  for (const uint64_t length : {uint64_t{0}, uint64_t{1} << 40, uint64_t{1} << 63, UINT64_MAX,
                                UINT64_MAX - 31, uint64_t{good.size()}}) {
    expect_bad(with_bytes(16, length, 8), "metadata claims");
  }
  expect_bad(with_bytes(24, 0, 8), "hash of its metadata");
}

TEST_CASE("open: every single changed bit of header and metadata is refused") {
  const std::string good = tiny_model_bytes();
  const TempDir temp;
  write_file(temp / "bad.tmac2", good);
  std::fstream file(temp / "bad.tmac2", std::ios::in | std::ios::out | std::ios::binary);
  const auto write_byte = [&](size_t at, char byte) {
    file.seekp(static_cast<std::streamoff>(at));
    file.put(byte);
    file.flush();
  };
  uint64_t metadata_bytes = 0;
  std::memcpy(&metadata_bytes, good.data() + 16, 8);
  size_t n_opened = 0;
  for (size_t at = 0; at < 32 + metadata_bytes; ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      write_byte(at, static_cast<char>(good[at] ^ (1 << bit)));
      try {
        ModelFile::open(temp / "bad.tmac2");
        ++n_opened;
      } catch (const Error&) {
      }
    }
    write_byte(at, good[at]);
  }
  CHECK(n_opened == 0);
  ModelFile::open(temp / "bad.tmac2").verify_contents();
}

TEST_CASE(
    "open: every single changed bit of metadata with a right hash is refused or makes sense") {
  const std::string good = tiny_model_bytes();
  uint64_t metadata_bytes = 0;
  std::memcpy(&metadata_bytes, good.data() + 16, 8);
  const std::string text = good.substr(32, static_cast<size_t>(metadata_bytes));
  size_t n_opened = 0;
  for (size_t at = 0; at < text.size(); ++at) {
    std::string bad = text;
    bad[at] = static_cast<char>(bad[at] ^ (1 << (at % 8)));
    n_opened += opens(with_metadata(good, bad)) ? 1 : 0;
  }
  // A size, an offset, a type or a hash that is another one never opens: what does is the golden's
  // ids, numbers such as eps, the text of special tokens, and names that stand for nothing else.
  CHECK(n_opened < text.size() / 16);
}

TEST_CASE("open: changed metadata with a right hash never crashes") {
  const std::string good = tiny_model_bytes();
  const std::string text = good.substr(32, static_cast<size_t>([&] {
                                         uint64_t n = 0;
                                         std::memcpy(&n, good.data() + 16, 8);
                                         return n;
                                       }()));
  const uint32_t seed = 11;
  INFO("seed " << seed);
  std::mt19937 generator(seed);
  // Bytes that mean something in JSON, so that many of the results still parse.
  const std::string alphabet = "0123456789-.e\"[]{},:truefalsnx\\";
  int n_refused = 0;
  for (int i = 0; i < 3000; ++i) {
    std::string bad = text;
    const size_t n_changes = 1 + generator() % 3;
    for (size_t k = 0; k < n_changes; ++k) {
      const size_t at = generator() % bad.size();
      switch (generator() % 3) {
        case 0:
          bad[at] = alphabet[generator() % alphabet.size()];
          break;
        case 1:
          bad.erase(at, 1 + generator() % 4);
          break;
        default:
          bad.insert(at, 1, alphabet[generator() % alphabet.size()]);
      }
    }
    n_refused += opens(with_metadata(good, bad)) ? 0 : 1;
  }
  CHECK(n_refused > 2000);
}

TEST_CASE("a file that the address space has no room for is not called damaged") {
  const TempDir temp;
  write_file(temp / "m.tmac2", "x");
  const InputFile file(temp / "m.tmac2");
  Mapping mapping;
  expect_error(ExitCode::kRuntime, {"not enough memory to map", "m.tmac2", "ulimit -v"},
               [&] { mapping.map(file.fd(), SIZE_MAX / 2, temp / "m.tmac2"); });
}

TEST_CASE("open: truncation at every border is refused") {
  const std::string good = tiny_model_bytes();
  std::vector<size_t> lengths = {0, 1, 8, 31, 32, 33};
  const Json metadata = metadata_of(good);
  for (const Json& section : metadata["sections"]) {
    const auto begin = section["offset"].get<size_t>();
    const size_t end = begin + section["bytes"].get<size_t>();
    for (const size_t at : {begin, end}) {
      lengths.insert(lengths.end(), {at - 1, at, at + 1});
    }
  }
  for (const size_t length : lengths) {
    INFO("length " << length);
    if (length == good.size()) continue;
    std::string cut = good.substr(0, length);
    cut.resize(length, '\0');  // the one beyond the end
    CHECK_FALSE(opens(cut));
  }
  expect_bad(good.substr(0, good.size() - 1), "cut off");
  expect_bad(good + '\0', "something was added");
}

TEST_CASE("open: sections lie apart, aligned, inside the file, and are there once") {
  const std::string good = tiny_model_bytes();
  const auto bad = [&](const std::string& text, const Change& change) {
    expect_bad(with_metadata(good, change), text);
  };
  const auto of = [](const char* name, const char* key, const Json& value) {
    return [=](Json& metadata) { section_of(metadata, name)[key] = value; };
  };
  bad("overlaps", [](Json& metadata) {
    section_of(metadata, "layers.0.q")["offset"] = section_of(metadata, "layers.0.k")["offset"];
  });
  bad("overlaps", of("layers.0.q", "offset", 0));
  bad("multiple of 256", [](Json& metadata) {
    Json& offset = section_of(metadata, "layers.0.q")["offset"];
    offset = offset.get<uint64_t>() + 128;
  });
  bad("cut off", of("layers.0.q", "offset", uint64_t{1} << 40));
  bad("cut off", of("layers.0.q", "offset", 0x7FFFFFFFFFFFFF00));
  for (const Json& offset : {Json(-256), Json(0.5), Json("0"), Json(nullptr), Json(UINT64_MAX),
                             Json(uint64_t{1} << 63)}) {
    bad("offset", of("layers.0.q", "offset", offset));
  }
  for (const Json& bytes : {Json(-1), Json(0), Json(1), Json(INT64_MAX), Json(uint64_t{1} << 63)}) {
    bad("bytes", of("layers.0.q", "bytes", bytes));
  }
  // Sizes whose product wraps around to something small.
  bad("not the size", of("layers.0.q", "shape", {uint64_t{1} << 62, 16}));
  bad("not the size", of("layers.0.q", "shape", {(int64_t{1} << 62) + 3, 64}));  // to just 48
  bad("not the size", of("layers.0.q", "shape", {INT64_MAX, INT64_MAX}));
  bad("not the size", of("layers.0.q", "shape", {16, 12, 1}));
  bad("not the size", of("layers.0.q", "shape", {48}));
  bad("size 0", of("layers.0.q", "shape", {0, 12}));
  bad("size -16", of("layers.0.q", "shape", {-16, 12}));
  bad("empty shape", of("layers.0.q", "shape", Json::array()));
  // The right size in another shape, or of another type.
  bad("architecture needs [16, 12]", of("layers.0.q", "shape", {12, 16}));
  bad("is f32, expected t2", [](Json& metadata) {
    section_of(metadata, "layers.0.q")["dtype"] = "f32";
    section_of(metadata, "layers.0.q")["shape"] = {12};
  });
  bad("not 16 hexadecimal digits", of("layers.0.q", "xxh3", "123"));
  bad("not 16 hexadecimal digits", of("layers.0.q", "xxh3", "-123456789abcdef"));
  bad("twice", of("layers.0.q", "name", "layers.0.k"));
  bad("'layers.0.q' is missing", of("layers.0.q", "name", "something else"));
  bad("'tokenizer.json' is missing", of("tokenizer.json", "name", "x"));
  bad("no sections", [](Json& metadata) { metadata["sections"] = Json::array(); });
  bad("multiple of 4096", [](Json& metadata) {
    // Away with all before rope.inv_freq, which is not at the start of a page.
    metadata["sections"].erase(0);
    metadata["tokenizer"]["section"] = nullptr;
  });
  for (const char* name : {"embedding", "final_norm", "rope.inv_freq", "layers.1.down",
                           "layers.1.down.scale", "layers.0.ffn_sub_norm"}) {
    bad(std::string("'") + name + "' is missing", of(name, "name", "x"));
  }
}

TEST_CASE("open: the architecture is checked before anything is believed") {
  const std::string good = tiny_model_bytes();
  const auto with = [&](const char* key, const Json& value) {
    return with_metadata(good, [&](Json& metadata) { metadata["architecture"][key] = value; });
  };
  for (const char* key :
       {"layers", "dim", "ffn", "heads", "kv_heads", "head_dim", "vocab", "max_context"}) {
    for (const Json& value : {Json(0), Json(-1), Json(1.5), Json("2"), Json(uint64_t{1} << 63),
                              Json(int64_t{1} << 31), Json(nullptr)}) {
      expect_bad(with(key, value), key);
    }
  }
  for (const char* key : {"act", "attn_sub_norm", "tied_head", "norm_eps", "rope_theta",
                          "activation_quant", "name"}) {
    expect_bad(with(key, Json::array()), key);
  }
  // Sizes for which no sections are there: no memory is taken for them.
  expect_bad(with("layers", 65536), "layers.2.attn_norm' is missing");
  expect_bad(with("vocab", 12), "the architecture needs [12, 12]");
  const auto unsupported = [&](const char* key, const Json& value, const char* text) {
    expect_bad(with(key, value), ExitCode::kUnsupported, {text});
  };
  unsupported("layers", 1 << 30, "layers is");
  unsupported("head_dim", 7, "head_dim is 7");
  unsupported("kv_heads", 3, "kv_heads is 3");
  unsupported("act", "gelu", "'gelu'");
  unsupported("activation_quant", "int4", "'int4'");
  unsupported("norm_eps", 0, "norm_eps");
  unsupported("norm_eps", 1e300, "norm_eps");
  unsupported("rope_theta", -1, "rope_theta");
  unsupported("rope_scaling", {{"type", "longrope"}}, "'longrope'");
  expect_bad(with("qk_norm", true), "layers.0.q_norm' is missing");
  expect_bad(with("input_norms", true), "input_norm_eps is missing");
  expect_bad(with("rope_scaling", {{"type", "yarn"}}), "factor is missing");
  expect_bad(with("rope_scaling", {{"type", "llama3"}}), "factor is missing");
}

TEST_CASE("open: what this version does not know") {
  const std::string good = tiny_model_bytes();
  expect_bad(with_metadata(good, [](Json& metadata) { metadata["requires"] = {"moe"}; }),
             ExitCode::kUnsupported, {"'moe'", "newer edgellm"});
  expect_bad(with_metadata(good,
                           [](Json& metadata) {
                             metadata["requires"] = {"input_norms"};
                             metadata["architecture"]["input_norms"] = true;
                             metadata["architecture"]["input_norm_eps"] = 1e-6;
                           }),
             "layers.0.q.input_norm' is missing");
  expect_bad(with_metadata(good, [](Json& metadata) { metadata["requires"] = {1}; }), "requires");
  expect_bad(with_metadata(good, [](Json& metadata) { metadata.erase("requires"); }), "requires");
  expect_bad(with_metadata(good, [](Json& m) { section_of(m, "layers.0.q")["dtype"] = "t3"; }),
             ExitCode::kUnsupported, {"'t3'"});
  expect_bad(with_metadata(good, [](Json& m) { section_of(m, "layers.0.q")["group"] = 128; }),
             ExitCode::kUnsupported, {"layers.0.q", "int16_group"});
  expect_bad(with_metadata(good, [](Json& m) { section_of(m, "layers.0.q")["group"] = 64; }),
             ExitCode::kUnsupported, {"layers.0.q", "64 columns", "groups of 128"});
  expect_bad(with_metadata(good,
                           [](Json& metadata) {
                             Json& scale = section_of(metadata, "layers.0.q.scale");
                             scale["shape"] = {1, 1};
                           }),
             "layers.0.q.scale");
  // Unknown keys are ignored.
  CHECK(opens(with_metadata(good, [](Json& metadata) {
    metadata["future"] = {{"a", 1}};
    metadata["architecture"]["future"] = 1;
    section_of(metadata, "embedding")["future"] = 1;
  })));
  // And unknown sections, if they are in their place.
  std::string longer = good;
  longer.resize((good.size() + 255) / 256 * 256 + 4);
  CHECK(opens(with_section_hash(with_metadata(longer,
                                              [&](Json& metadata) {
                                                metadata["sections"].push_back(
                                                    {{"name", "future"},
                                                     {"dtype", "u8"},
                                                     {"shape", {4}},
                                                     {"offset", longer.size() - 4},
                                                     {"bytes", 4},
                                                     {"xxh3", std::string(16, '0')}});
                                              }),
                                "future")));
}

TEST_CASE("open: broken JSON") {
  const std::string good = tiny_model_bytes();
  const auto bad = [&](const std::string& metadata, const std::string& text) {
    expect_bad(with_metadata(good, metadata), text);
  };
  bad("{", "not valid JSON");
  bad("[]", "not a JSON object");
  bad("{\"a\": \"\xFF\"}", "not valid JSON");
  bad("{\"a\": 1e999}", "not valid JSON");
  bad("{\"a\": 1, \"a\": 1}", "key 'a' twice");
  bad(R"({"x": {"a": 1}, "y": {"a": {"b": 1}, "c": 2, "a": 1}})", "key 'a' twice");
  bad("{\"a\":" + std::string(1000000, '['), "nested deeper");
  std::string deep;
  for (int i = 0; i < 100000; ++i) deep += "{\"a\":";
  bad(deep, "nested deeper");
  bad("{} {}", "not valid JSON");
  bad(std::string("{\0}", 3), "not valid JSON");
}

TEST_CASE("open: ids are in the vocabulary") {
  const std::string good = tiny_model_bytes();
  const auto bad = [&](const std::string& text, const Change& change) {
    expect_bad(with_metadata(good, change), text);
  };
  for (const Json& id : {Json(11), Json(-1), Json(1.5), Json("1"), Json(uint64_t{1} << 32)}) {
    bad("stop_ids", [&](Json& metadata) { metadata["tokenizer"]["stop_ids"] = {id}; });
    bad("bos", [&](Json& metadata) { metadata["tokenizer"]["bos"] = id; });
    bad("prompt_ids", [&](Json& metadata) { metadata["golden"]["prompt_ids"] = {id}; });
    bad("greedy_ids", [&](Json& metadata) { metadata["golden"]["greedy_ids"] = {id}; });
  }
  bad("ascending", [](Json& metadata) { metadata["tokenizer"]["stop_ids"] = {2, 1}; });
  bad("ascending", [](Json& metadata) { metadata["tokenizer"]["stop_ids"] = {2, 2}; });
  bad("without a bos", [](Json& metadata) {
    metadata["tokenizer"]["bos"] = nullptr;
    metadata["tokenizer"]["add_bos"] = true;
  });
  bad("prompt_ids is empty", [](Json& m) { m["golden"]["prompt_ids"] = Json::array(); });
  bad("more than the context",
      [](Json& m) { m["golden"]["greedy_ids"] = std::vector<int>(64, 1); });
  bad("sampling", [](Json& metadata) { metadata["tokenizer"]["sampling"] = 1; });
}

TEST_CASE("verify: every changed byte behind the metadata is found") {
  const std::string good = tiny_model_bytes();
  const TempDir temp;
  uint64_t metadata_bytes = 0;
  std::memcpy(&metadata_bytes, good.data() + 16, 8);
  std::string bad = good;
  for (size_t at = 32 + static_cast<size_t>(metadata_bytes); at < good.size(); at += 7) {
    bad[at] = static_cast<char>(bad[at] ^ (1 << (at % 8)));
    write_file(temp / "bad.tmac2", bad);
    const ModelFile file = ModelFile::open(temp / "bad.tmac2");
    CHECK_THROWS_AS(file.verify_contents(), Error);
    bad[at] = good[at];
  }
}

TEST_CASE("verify: of several faults the first one in the file is told, every time") {
  std::string bad = tiny_model_bytes();
  Json metadata = metadata_of(bad);
  const std::vector<std::string> names = {"layers.0.k", "layers.0.gate", "layers.1.q",
                                          "layers.1.down"};
  for (const std::string& name : names) {
    bad[section_of(metadata, name)["offset"].get<size_t>()] ^= 1;
  }
  const TempDir temp;
  write_file(temp / "bad.tmac2", bad);
  const ModelFile file = ModelFile::open(temp / "bad.tmac2");
  for (int i = 0; i < 200; ++i) {
    expect_error(ExitCode::kModelFile, {"layers.0.k'"}, [&] { file.verify_contents(); });
  }
}

TEST_CASE("verify: values that no writer may write are found behind a right hash") {
  const std::string good = tiny_model_bytes();
  const auto bad = [&](const char* section, size_t at, const std::string& bytes,
                       const std::string& text) {
    Json metadata = metadata_of(good);
    std::string changed = good;
    changed.replace(section_of(metadata, section)["offset"].get<size_t>() + at, bytes.size(),
                    bytes);
    expect_bad(with_section_hash(changed, section), text);
  };
  for (size_t at : {size_t{0}, size_t{7}, size_t{8}, size_t{47}}) {
    for (const char* code : {"\x02", "\x08", "\x20", "\x80"}) {
      bad("layers.0.q", at, code, "code 10");
    }
  }
  const auto bits = [](uint32_t value) {
    std::string bytes(4, '\0');
    std::memcpy(bytes.data(), &value, 4);
    return bytes;
  };
  for (const uint32_t value : {0x7F800000u, 0xFF800000u, 0x7FC00000u}) {
    bad("layers.0.q.scale", 0, bits(value), "not finite");
    bad("layers.1.attn_norm", 44, bits(value), "not finite");
    bad("rope.inv_freq", 12, bits(value), "not finite");
  }
  bad("embedding", 2, std::string("\x80\x7F", 2), "not finite");
  bad("layers.0.q.scale", 0, bits(0xBF800000u), "negative");
}

TEST_CASE("verify: row padding must be zero") {
  const TempDir temp;
  HfFolder hf = tiny_llama();
  hf.tensors.clear();
  hf.config["hidden_size"] = 13;
  hf.write(temp.path() / "hf");
  SynthOptions options;
  options.shape = temp / "hf/config.json";
  write_synth(options, temp / "synth.tmac2");
  const std::string good = read_file(temp / "synth.tmac2");
  Json metadata = metadata_of(good);
  const auto offset = section_of(metadata, "layers.0.q")["offset"].get<size_t>();
  for (const size_t row : {size_t{0}, size_t{15}}) {
    for (const int bit : {2, 4, 6}) {
      std::string bad = good;
      char& last = bad[offset + 4 * row + 3];
      last = static_cast<char>(last | (1 << bit));
      expect_bad(with_section_hash(bad, "layers.0.q"), "row padding");
    }
  }
}

TEST_CASE("scales per row and of f16 are read") {
  const std::string good = tiny_model_bytes();
  // Four bytes of f32 become two f16 values for a matrix that is declared with as many rows; k of
  // the tiny model has 8 rows, so its scale gets room of its own behind the file's end.
  std::string longer = good;
  const size_t offset = (good.size() + 255) / 256 * 256;
  longer.resize(offset);
  std::vector<float> expected;
  for (uint16_t i = 0; i < 8; ++i) {
    const auto half = static_cast<uint16_t>(0x3400 + 37 * i);
    longer.append(reinterpret_cast<const char*>(&half), 2);
    expected.push_back(model_io::f16_to_float(half));
  }
  const std::string file = with_section_hash(
      with_metadata(longer,
                    [&](Json& metadata) {
                      section_of(metadata, "layers.0.k.scale")["name"] = "old";
                      metadata["sections"].push_back({{"name", "layers.0.k.scale"},
                                                      {"dtype", "f16"},
                                                      {"shape", {8}},
                                                      {"offset", offset},
                                                      {"bytes", 16},
                                                      {"xxh3", std::string(16, '0')}});
                    }),
      "layers.0.k.scale");
  const TempDir temp;
  write_file(temp / "model.tmac2", file);
  const ModelFile model = ModelFile::open(temp / "model.tmac2");
  model.verify_contents();
  const std::span<const float> scale = model.weights().layers[0].k.scale;
  CHECK(std::vector<float>(scale.begin(), scale.end()) == expected);
  expect_bad(with_metadata(file,
                           [](Json& metadata) {
                             Json& entry = section_of(metadata, "layers.0.k.scale");
                             entry["shape"] = {4};
                             entry["dtype"] = "f32";
                           }),
             "the architecture needs [8]");
}

TEST_CASE("f16 widens exactly") {
  CHECK(model_io::f16_to_float(0x3C00) == 1.0f);
  CHECK(model_io::f16_to_float(0xC000) == -2.0f);
  CHECK(model_io::f16_to_float(0x7BFF) == 65504.0f);
  CHECK(model_io::f16_to_float(0x0400) == 0x1p-14f);
  CHECK(model_io::f16_to_float(0x0001) == 0x1p-24f);
  CHECK(model_io::f16_to_float(0x83FF) == -1023 * 0x1p-24f);
  CHECK(std::signbit(model_io::f16_to_float(0x8000)));
  CHECK(std::isinf(model_io::f16_to_float(0x7C00)));
  CHECK(std::isnan(model_io::f16_to_float(0x7E00)));
}

TEST_CASE("bf16 rounds to nearest, ties to even") {
  CHECK(model_io::float_to_bf16(1.0f) == 0x3F80);
  CHECK(model_io::float_to_bf16(0x1.01p0f) == 0x3F80);  // halfway, down to even
  CHECK(model_io::float_to_bf16(0x1.03p0f) == 0x3F82);  // halfway, up to even
  CHECK(model_io::float_to_bf16(0x1.010002p0f) == 0x3F81);
  CHECK(model_io::float_to_bf16(-0x1.01p0f) == 0xBF80);
  CHECK(model_io::bf16_to_float(0xC040) == -3.0f);
}

namespace {

// Bytes of mapped files that are in this process's memory.
size_t resident_file_bytes() {
  std::ifstream in("/proc/self/status");
  size_t bytes = 0;
  for (std::string line; std::getline(in, line);) {
    // A temporary folder in memory counts as shared memory.
    for (const std::string field : {"RssFile:", "RssShmem:"}) {
      if (line.starts_with(field)) bytes += std::stoull(line.substr(field.size())) * 1024;
    }
  }
  return bytes;
}

}  // namespace

TEST_CASE("released pages leave memory") {
  const TempDir temp;
  SynthOptions options;
  options.shape = "bitnet-2b-4t";
  options.layers = 1;
  options.vocab = 100;
  write_synth(options, temp / "synth.tmac2");
  const ModelFile file = ModelFile::open(temp / "synth.tmac2");
  file.verify_contents();
  const size_t before = resident_file_bytes();
  file.release_pages(file.weights().layers[0]);
  CHECK(resident_file_bytes() + file.file_bytes() * 8 / 10 < before);
}

TEST_CASE("released pages come back with the same values") {
  const TempDir temp;
  write_file(temp / "model.tmac2", tiny_model_bytes());
  const ModelFile file = ModelFile::open(temp / "model.tmac2");
  const LayerWeights& layer = file.weights().layers[1];
  const std::vector<int> before = codes_of(layer.down);
  for (const LayerWeights& each : file.weights().layers) file.release_pages(each);
  file.release_pages(file.weights().embedding);
  CHECK(codes_of(layer.down) == before);
  file.verify_contents();
}

TEST_CASE("verify reports progress up to the file's size") {
  const TempDir temp;
  write_file(temp / "model.tmac2", tiny_model_bytes());
  const ModelFile file = ModelFile::open(temp / "model.tmac2");
  uint64_t last = 0;
  file.verify_contents([&](std::string_view, uint64_t done, uint64_t total) {
    CHECK(done >= last);
    CHECK(total == file.file_bytes());
    last = done;
  });
  CHECK(last == file.file_bytes());
}
