// How `perplexity` cuts a text: which ids each pass reads, and which of them count.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace edgellm {

enum class PerplexityMethod {
  kWindows,   // windows side by side, every id of each
  kStride,    // overlapping windows, as in transformers' guide "Perplexity of fixed-length models"
  kLlamaCpp,  // windows side by side, the second half of each, as llama-perplexity
};

// Of PerplexityMethod: "windows", "stride", "llama.cpp".
const char* to_string(PerplexityMethod method);
// What is wrong with such a name; empty for a good one.
std::string perplexity_method_problem(const std::string& name);
PerplexityMethod perplexity_method_of(const std::string& name);

struct PerplexityOptions {
  PerplexityMethod method = PerplexityMethod::kWindows;
  std::optional<int> window;  // ids; without it as PerplexityCut says
  std::optional<int> stride;  // of kStride
};

// Some of a text's ids. Those from first_counted on are predicted, and count.
struct PerplexityWindow {
  size_t begin = 0;
  size_t end = 0;
  size_t first_counted = 0;
  double weight = 0;  // of the mean over those that count
};

class PerplexityCut {
 public:
  // `bos` is what tokenizing adds in front of a text. With kWindows it stands before each window
  // and `ids` are without it; with kLlamaCpp it takes the place of each window's first id. Windows
  // are as long as the context unless given, with kLlamaCpp 512; a stride is 512. Throws Error
  // (kUsage) where a window does not fit the context, or the text is too short.
  PerplexityCut(std::vector<int32_t> ids, std::optional<int32_t> bos, int context,
                const PerplexityOptions& options);

  const std::vector<PerplexityWindow>& windows() const { return windows_; }
  size_t window_size() const { return size_; }
  size_t stride() const { return stride_; }  // from a window's first id to the next one's
  size_t longest_pass() const;               // ids
  size_t n_counted() const;

  // What a pass over the window reads, and behind that the last id, which is only predicted.
  std::vector<int32_t> ids_of(const PerplexityWindow& window) const;

 private:
  void cut_side_by_side();
  void cut_overlapping();
  void cut_as_llama_cpp();

  std::vector<int32_t> ids_;
  std::optional<int32_t> bos_;
  PerplexityMethod method_;
  size_t size_ = 0;
  size_t stride_ = 0;
  std::vector<PerplexityWindow> windows_;
};

}  // namespace edgellm
