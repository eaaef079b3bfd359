#include "apps/hub/reference.h"

#include <algorithm>
#include <string_view>

#include "base/error.h"
#include "base/text.h"

namespace edgellm::hub {
namespace {

constexpr std::string_view kPrefix = "hf:";
constexpr size_t kMaxPartBytes = 96;  // the Hub's own limit
constexpr size_t kMaxRevisionBytes = 200;
constexpr size_t kMaxFileNameBytes = 200;

bool is_name_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
         c == '_' || c == '-';
}

bool is_name(const std::string& name, size_t max_bytes) {
  return !name.empty() && name.size() <= max_bytes && name.front() != '.' &&
         name.find("..") == std::string::npos &&
         std::all_of(name.begin(), name.end(), is_name_character);
}

// What git forbids in the name of a branch, and spaces.
bool is_revision(const std::string& name) {
  const auto is_bad = [](char c) {
    return c <= ' ' || c >= '\x7f' || std::string_view("\\~^:?*[").find(c) != std::string::npos;
  };
  return !name.empty() && name.size() <= kMaxRevisionBytes && name.front() != '/' &&
         name.front() != '.' && name.find("..") == std::string::npos &&
         std::none_of(name.begin(), name.end(), is_bad);
}

[[noreturn]] void refuse(const std::string& text) {
  std::string said = text;
  // What people copy from a browser.
  for (const std::string_view host : {"https://huggingface.co/", "huggingface.co/", "hf.co/"}) {
    if (said.starts_with(host)) said.erase(0, host.size());
  }
  const size_t slash = said.find('/');
  const std::string org = said.substr(0, slash);
  std::string name = slash == std::string::npos ? "" : said.substr(slash + 1);
  name.resize(std::min(name.size(), name.find('/')));
  const bool is_meant = is_name(org, kMaxPartBytes) && is_name(name, kMaxPartBytes);
  throw Error(ExitCode::kUsage, "'" + printable(text) +
                                    "' is not the name of a model on the Hugging Face Hub; " +
                                    (is_meant ? "type: edgellm pull hf:" + org + "/" + name
                                              : "expected hf:ORG/NAME or hf:ORG/NAME@REVISION, as "
                                                "in hf:microsoft/bitnet-b1.58-2B-4T"));
}

}  // namespace

std::string Reference::text() const {
  return std::string(kPrefix) + id() + (revision.empty() ? "" : "@" + revision);
}

std::string Reference::stored_name() const {
  if (revision.empty()) return id();
  std::string ending = revision;
  std::replace_if(
      ending.begin(), ending.end(), [](char c) { return !is_name_character(c); }, '-');
  return id() + "@" + ending;
}

Reference parse_reference(const std::string& text) {
  if (!text.starts_with(kPrefix)) refuse(text);
  std::string rest = text.substr(kPrefix.size());
  Reference reference;
  if (const size_t at = rest.find('@'); at != std::string::npos) {
    reference.revision = rest.substr(at + 1);
    if (!is_revision(reference.revision)) refuse(text);
    rest.resize(at);
  }
  const size_t slash = rest.find('/');
  if (slash == std::string::npos) refuse(text);
  reference.org = rest.substr(0, slash);
  reference.name = rest.substr(slash + 1);
  if (!is_name(reference.org, kMaxPartBytes) || !is_name(reference.name, kMaxPartBytes)) {
    refuse(text);
  }
  return reference;
}

bool is_plain_file_name(const std::string& name) {
  return is_name(name, kMaxFileNameBytes) && name.front() != '-';
}

}  // namespace edgellm::hub
