#include "apps/hub/digest.h"

#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <utility>

#include "base/error.h"
#include "base/text.h"

namespace edgellm::hub {

ContentHash ContentHash::parse(std::string text) {
  const auto is_hex = [](unsigned char c) { return std::isxdigit(c) != 0; };
  if (!std::all_of(text.begin(), text.end(), is_hex)) return {};
  text = lower_ascii(std::move(text));
  if (text.size() == 64) return {Kind::kSha256, text};
  if (text.size() == 40) return {Kind::kGitBlob, text};
  return {};
}

void Digest::Free::operator()(evp_md_ctx_st* context) const { EVP_MD_CTX_free(context); }

Digest::Digest(ContentHash::Kind kind, uint64_t bytes) {
  if (kind == ContentHash::Kind::kNone) return;
  context_.reset(EVP_MD_CTX_new());
  const EVP_MD* const type = kind == ContentHash::Kind::kSha256 ? EVP_sha256() : EVP_sha1();
  require(context_ && EVP_DigestInit_ex(context_.get(), type, nullptr) == 1, "OpenSSL's hashes");
  if (kind == ContentHash::Kind::kGitBlob) {
    const std::string head = "blob " + std::to_string(bytes);
    update(head.c_str(), head.size() + 1);
  }
}

Digest::~Digest() = default;
Digest::Digest(Digest&&) noexcept = default;
Digest& Digest::operator=(Digest&&) noexcept = default;

void Digest::update(const void* data, size_t bytes) {
  if (context_) EVP_DigestUpdate(context_.get(), data, bytes);
}

std::string Digest::hex() {
  if (!context_) return "";
  std::array<unsigned char, EVP_MAX_MD_SIZE> bytes{};
  unsigned int n = 0;
  EVP_DigestFinal_ex(context_.get(), bytes.data(), &n);
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (unsigned int i = 0; i < n; ++i) {
    text += kDigits[bytes[i] >> 4];
    text += kDigits[bytes[i] & 15];
  }
  return text;
}

}  // namespace edgellm::hub
