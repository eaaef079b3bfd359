#include "apps/inspect/perplexity_windows.h"

#include <algorithm>
#include <array>
#include <utility>

#include "apps/common/near_matches.h"
#include "base/error.h"

namespace edgellm {
namespace {

// Of llama-perplexity's windows, and of the guide's strides.
constexpr size_t kUsualSize = 512;

constexpr std::array kMethods = {PerplexityMethod::kWindows, PerplexityMethod::kStride,
                                 PerplexityMethod::kLlamaCpp};

[[noreturn]] void refuse(const std::string& what) { throw Error(ExitCode::kUsage, what); }

}  // namespace

const char* to_string(PerplexityMethod method) {
  switch (method) {
    case PerplexityMethod::kWindows:
      return "windows";
    case PerplexityMethod::kStride:
      return "stride";
    case PerplexityMethod::kLlamaCpp:
      break;
  }
  return "llama.cpp";
}

PerplexityMethod perplexity_method_of(const std::string& name) {
  const auto* found = std::find_if(kMethods.begin(), kMethods.end(), [&](PerplexityMethod method) {
    return to_string(method) == name;
  });
  require(found != kMethods.end(), "the name of a method");
  return *found;
}

std::string perplexity_method_problem(const std::string& name) {
  std::vector<std::string> names;
  for (const PerplexityMethod method : kMethods) names.emplace_back(to_string(method));
  if (std::find(names.begin(), names.end(), name) != names.end()) return "";
  return "unknown method " + name + "; use windows, stride or llama.cpp" +
         did_you_mean(name, names);
}

PerplexityCut::PerplexityCut(std::vector<int32_t> ids, std::optional<int32_t> bos, int context,
                             const PerplexityOptions& options)
    : ids_(std::move(ids)), bos_(bos), method_(options.method) {
  const bool is_llama_cpp = method_ == PerplexityMethod::kLlamaCpp;
  const bool adds_bos = bos_ && method_ == PerplexityMethod::kWindows;
  const size_t longest = static_cast<size_t>(context) - (adds_bos ? 1 : 0);
  size_ = is_llama_cpp ? std::min(kUsualSize, longest) : longest;
  if (options.window) size_ = static_cast<size_t>(*options.window);
  if (size_ > longest) {
    refuse("--window " + std::to_string(size_) + " does not fit the context of " +
           std::to_string(context) + "; use at most --window " + std::to_string(longest));
  }
  stride_ = size_;
  switch (method_) {
    case PerplexityMethod::kWindows:
      cut_side_by_side();
      break;
    case PerplexityMethod::kStride:
      stride_ = options.stride ? static_cast<size_t>(*options.stride) : std::min(kUsualSize, size_);
      cut_overlapping();
      break;
    case PerplexityMethod::kLlamaCpp:
      cut_as_llama_cpp();
      break;
  }
  if (windows_.empty()) refuse("the text is too short: there is no token to predict");
}

// A window without an id to predict is left out.
void PerplexityCut::cut_side_by_side() {
  for (size_t begin = 0; begin < ids_.size(); begin += size_) {
    const size_t end = std::min(begin + size_, ids_.size());
    const size_t first = begin + (bos_ ? 0 : 1);
    if (first < end) windows_.push_back({begin, end, first, static_cast<double>(end - first)});
  }
}

// Each window predicts the ids that no window before it has, with all before them as far as the
// window goes. The guide takes one prediction too many off the weight of every window but the first
// ("due to internal label shift"), and so do we.
void PerplexityCut::cut_overlapping() {
  if (stride_ > size_) {
    refuse("--stride " + std::to_string(stride_) + " leaves ids out between windows of " +
           std::to_string(size_) + "; use at most --stride " + std::to_string(size_));
  }
  size_t counted_end = 1;  // nothing predicts the first id
  for (size_t begin = 0; counted_end < ids_.size(); begin += stride_) {
    const size_t end = std::min(begin + size_, ids_.size());
    const size_t first = std::max(counted_end, begin + 1);
    const size_t n_labels = begin == 0 ? end : end - counted_end;
    if (first < end) windows_.push_back({begin, end, first, static_cast<double>(n_labels - 1)});
    counted_end = end;
  }
}

// The ids behind the last whole window are left out.
void PerplexityCut::cut_as_llama_cpp() {
  if (size_ < 3 || ids_.size() < 2 * size_) {
    refuse("the text is too short for llama.cpp's way: two windows of " + std::to_string(size_) +
           " are " + std::to_string(2 * size_) + " tokens, and there are " +
           std::to_string(ids_.size()) + "; use a smaller --window (at least 3)");
  }
  for (size_t begin = 0; begin + size_ <= ids_.size(); begin += size_) {
    const size_t first = begin + size_ / 2 + 1;
    windows_.push_back({begin, begin + size_, first, static_cast<double>(begin + size_ - first)});
  }
}

std::vector<int32_t> PerplexityCut::ids_of(const PerplexityWindow& window) const {
  std::vector<int32_t> ids;
  if (bos_ && method_ == PerplexityMethod::kWindows) ids.push_back(*bos_);
  ids.insert(ids.end(), ids_.begin() + static_cast<std::ptrdiff_t>(window.begin),
             ids_.begin() + static_cast<std::ptrdiff_t>(window.end));
  if (bos_ && method_ == PerplexityMethod::kLlamaCpp) ids.front() = *bos_;
  return ids;
}

size_t PerplexityCut::longest_pass() const {
  size_t longest = 0;
  for (const PerplexityWindow& window : windows_) {
    longest = std::max(longest, window.end - window.begin);
  }
  return longest + (bos_ && method_ == PerplexityMethod::kWindows ? 1 : 0);
}

size_t PerplexityCut::n_counted() const {
  size_t n = 0;
  for (const PerplexityWindow& window : windows_) n += window.end - window.first_counted;
  return n;
}

}  // namespace edgellm
