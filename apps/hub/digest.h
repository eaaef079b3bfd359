// The hashes by which the Hub names contents, through OpenSSL.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

struct evp_md_ctx_st;

namespace edgellm::hub {

// What a file's contents must hash to. Large files have a sha256 (of Git LFS), others the name of
// git's blob: the sha1 of "blob SIZE", a zero byte and the contents.
struct ContentHash {
  enum class Kind { kNone, kSha256, kGitBlob };
  Kind kind = Kind::kNone;
  std::string hex;  // small letters

  // The kind by the length: 64 or 40 hex digits, anything else is none.
  static ContentHash parse(std::string text);
};

class Digest {
 public:
  // `bytes`: of the whole contents.
  Digest(ContentHash::Kind kind, uint64_t bytes);
  ~Digest();
  Digest(Digest&&) noexcept;
  Digest& operator=(Digest&&) noexcept;

  void update(const void* data, size_t bytes);
  std::string hex();  // once; empty for kNone

 private:
  struct Free {
    void operator()(evp_md_ctx_st* context) const;
  };
  std::unique_ptr<evp_md_ctx_st, Free> context_;  // null for kNone
};

}  // namespace edgellm::hub
