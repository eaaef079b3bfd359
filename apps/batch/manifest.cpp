#include "apps/batch/manifest.h"

#include <charconv>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "base/output_file.h"
#include "base/text.h"

namespace edgellm {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr const char* kSchema = "edgellm.batch/1";
constexpr uint64_t kMaxManifestBytes = 16 << 20;
constexpr int64_t kMany = INT64_MAX;

uint64_t hash_field(const Fields& fields, const char* key) {
  const auto value = parse_hex64(fields.text(key));
  if (!value) fields.fail(fields.name(key) + " is no hash of 16 hex digits");
  return *value;
}

BatchManifest parse(const std::string& text, const std::string& path) {
  const JsonSource source = {.path = path, .blame = ExitCode::kUsage};
  const Json json = parse_json_object(text, source);
  const Fields fields(json, source);
  if (fields.text("schema") != kSchema) fields.fail("schema is not " + std::string(kSchema));
  BatchManifest manifest;
  manifest.version = fields.text("version");
  const Fields model = fields.object("model");
  manifest.model_path = model.text("path");
  manifest.model_id = hash_field(model, "id");
  const Fields input = fields.object("input");
  manifest.input_path = input.text("path");
  if (input.has("xxh3")) {
    manifest.input = {.bytes = static_cast<uint64_t>(input.integer("bytes", 0, kMany)),
                      .xxh3 = hash_field(input, "xxh3"),
                      .requests = input.integer("requests", 0, kMany)};
  }
  const auto shard = parse_shard(fields.text("shard"));
  if (!shard) fields.fail("shard is not of the form 1/4");
  manifest.shard = *shard;
  manifest.flags = fields.object("flags").json();
  const Fields state = fields.object("state");
  manifest.is_complete = state.boolean("complete");
  manifest.succeeded = state.integer("succeeded", 0, kMany);
  manifest.failed = state.integer("failed", 0, kMany);
  return manifest;
}

// A text for each value of `now` that is another one in `before`, objects member by member.
void add_differences(const nlohmann::json& before, const nlohmann::json& now,
                     std::vector<std::string>& differences) {
  for (const auto& [name, value] : now.items()) {
    const auto found = before.find(name);
    const nlohmann::json old = found == before.end() ? nlohmann::json(nullptr) : *found;
    if (old == value) continue;
    if (old.is_object() && value.is_object()) {
      add_differences(old, value, differences);
    } else {
      differences.push_back(name + " was " + old.dump() + ", now it is " + value.dump());
    }
  }
}

}  // namespace

std::string to_string(const Shard& shard) {
  return std::to_string(shard.index) + "/" + std::to_string(shard.count);
}

std::optional<Shard> parse_shard(const std::string& text) {
  Shard shard;
  const char* const end = text.data() + text.size();
  const auto index = std::from_chars(text.data(), end, shard.index);
  if (index.ec != std::errc() || index.ptr == end || *index.ptr != '/') return std::nullopt;
  const auto count = std::from_chars(index.ptr + 1, end, shard.count);
  if (count.ec != std::errc() || count.ptr != end) return std::nullopt;
  if (shard.index < 1 || shard.index > shard.count) return std::nullopt;
  return shard;
}

std::string manifest_path(const std::string& output_path) { return output_path + ".manifest.json"; }

std::optional<BatchManifest> read_manifest(const std::string& output_path) {
  const std::string path = manifest_path(output_path);
  if (!path_exists(path)) return std::nullopt;
  try {
    return parse(read_text_file(path, kMaxManifestBytes), path);
  } catch (const Error& error) {
    throw Error(ExitCode::kUsage, std::string(error.what()) +
                                      "; --restart starts over and drops the answers that " +
                                      output_path + " holds");
  }
}

void write_manifest(const std::string& output_path, const BatchManifest& manifest) {
  OrderedJson input = {{"path", manifest.input_path}};
  if (manifest.input) {
    input["bytes"] = manifest.input->bytes;
    input["xxh3"] = hex64(manifest.input->xxh3);
    input["requests"] = manifest.input->requests;
  }
  const OrderedJson json = {
      {"schema", kSchema},
      {"version", manifest.version},
      {"model", {{"path", manifest.model_path}, {"id", hex64(manifest.model_id)}}},
      {"input", input},
      {"shard", to_string(manifest.shard)},
      {"flags", manifest.flags},
      {"state",
       {{"complete", manifest.is_complete},
        {"succeeded", manifest.succeeded},
        {"failed", manifest.failed}}}};
  const std::string text = json.dump(2, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
  OutputFile file(manifest_path(output_path), OutputFile::Temporary::kFixed);
  file.write(text.data(), text.size());
  file.commit();
}

std::vector<std::string> manifest_differences(const BatchManifest& before,
                                              const BatchManifest& now) {
  std::vector<std::string> differences;
  if (before.model_id != now.model_id) {
    differences.push_back("the model was " + before.model_path + " (" + hex64(before.model_id) +
                          "), now it is " + now.model_path + " (" + hex64(now.model_id) + ")");
  }
  add_differences(before.flags, now.flags, differences);
  if (before.shard != now.shard) {
    differences.push_back("--shard was " + to_string(before.shard) + ", now it is " +
                          to_string(now.shard));
  }
  return differences;
}

}  // namespace edgellm
