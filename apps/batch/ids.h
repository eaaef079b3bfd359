// Which request is which: within an input by its id, between two runs by a digest.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

namespace edgellm {

// 128 bits of xxh3: no two requests of any file have the same one.
struct Digest {
  uint64_t high = 0;
  uint64_t low = 0;
  auto operator<=>(const Digest&) const = default;
};

struct DigestHash {
  size_t operator()(const Digest& digest) const { return digest.low; }
};

// Of a request's id and the text of its line. The place of the line plays no part.
Digest request_digest(std::string_view id, std::string_view line);

std::string hex128(const Digest& digest);  // 32 digits
std::optional<Digest> parse_hex128(std::string_view text);

// The shard of `n`, from 1, that a request belongs to: xxh3-64 of its id, modulo n, plus 1.
int shard_of(std::string_view id, int n);

// The seed of a request that names none, from that of the run: other requests draw other numbers,
// and the same file gives the same answers again.
uint64_t seed_of(std::string_view id, uint64_t seed_of_run);

// Gives every request of an input an id that no other has. The same input gives the same ids.
class BatchIds {
 public:
  struct Id {
    std::string text;
    int64_t used_in_line = 0;  // not 0: the id that was given belongs to that line's request
  };

  // To be called for lines in ascending order. A request without an id, or with one that is used
  // already, gets the id "line-12". While an earlier line has that id, a "+" is appended to it.
  Id assign(const std::optional<std::string>& given, int64_t line);

 private:
  // About 60 bytes a request. Nothing else is kept of a line that is done.
  std::unordered_map<Digest, int64_t, DigestHash> lines_;
};

}  // namespace edgellm
