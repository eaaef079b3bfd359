#include "apps/batch/ids.h"

#include "base/hash.h"
#include "base/text.h"

namespace edgellm {
namespace {

Digest digest_of(std::string_view text) {
  const XXH128_hash_t hash = XXH3_128bits(text.data(), text.size());
  return {.high = hash.high64, .low = hash.low64};
}

}  // namespace

Digest request_digest(std::string_view id, std::string_view line) {
  std::string text(id);
  text += '\0';
  text += line;
  return digest_of(text);
}

std::string hex128(const Digest& digest) { return hex64(digest.high) + hex64(digest.low); }

std::optional<Digest> parse_hex128(std::string_view text) {
  if (text.size() != 32) return std::nullopt;
  const auto high = parse_hex64(text.substr(0, 16));
  const auto low = parse_hex64(text.substr(16));
  if (!high || !low) return std::nullopt;
  return Digest{.high = *high, .low = *low};
}

int shard_of(std::string_view id, int n) {
  return static_cast<int>(xxh3(id.data(), id.size()) % static_cast<uint64_t>(n)) + 1;
}

uint64_t seed_of(std::string_view id, uint64_t seed_of_run) {
  return seed_of_run + (xxh3(id.data(), id.size()) >> 32);
}

BatchIds::Id BatchIds::assign(const std::optional<std::string>& given, int64_t line) {
  Id id;
  if (given) {
    const auto [entry, is_new] = lines_.emplace(digest_of(*given), line);
    if (is_new) return {.text = *given};
    id.used_in_line = entry->second;
  }
  id.text = "line-" + std::to_string(line);
  while (!lines_.emplace(digest_of(id.text), line).second) id.text += '+';
  return id;
}

}  // namespace edgellm
