// OUT.manifest.json: what an output was made from, so that only the same run resumes it.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace edgellm {

struct Shard {
  int index = 1;  // from 1
  int count = 1;
  bool operator==(const Shard&) const = default;
};
std::string to_string(const Shard& shard);  // "2/4"
std::optional<Shard> parse_shard(const std::string& text);

struct BatchManifest {
  // The whole input: its bytes, and its lines that are not blank.
  struct Input {
    uint64_t bytes = 0;
    uint64_t xxh3 = 0;
    int64_t requests = 0;
    bool operator==(const Input&) const = default;
  };

  std::string version;  // of edgellm
  std::string model_path;
  uint64_t model_id = 0;
  std::string input_path;
  std::optional<Input> input;  // empty while standard input has not ended
  Shard shard;
  nlohmann::json flags;  // those that change answers
  // Set when every request of the shard has its record.
  bool is_complete = false;
  int64_t succeeded = 0;
  int64_t failed = 0;
};

std::string manifest_path(const std::string& output_path);

// Empty where there is none. Throws Error (kUsage) for a faulty one.
std::optional<BatchManifest> read_manifest(const std::string& output_path);

// Replaces an older one, which stays whole until then. Throws Error (kRuntime).
void write_manifest(const std::string& output_path, const BatchManifest& manifest);

// A text for each of model, flags and shard that is not the same. Inputs are not compared here.
std::vector<std::string> manifest_differences(const BatchManifest& before,
                                              const BatchManifest& now);

}  // namespace edgellm
