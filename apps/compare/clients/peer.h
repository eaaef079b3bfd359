// A server that generates text, as `edgellm compare` sees it, and what an answer of it was like.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/common/measured.h"
#include "apps/compare/clients/http_client.h"

namespace edgellm::peers {

struct CompletionRequest {
  std::string prompt;
  int max_tokens = 0;
  int context = 0;  // positions; not sent to servers that are started with a fixed number
};

// What the server itself reports of an answer. Servers differ in whether their rates count the
// first token.
struct ServerFigures {
  Measured<int64_t> prompt_tokens;  // those it evaluated
  Measured<int64_t> prompt_ns;
  Measured<int64_t> cached_tokens;  // of the prompt, taken from its cache
  Measured<int64_t> eval_tokens;
  Measured<int64_t> eval_ns;
  Measured<int64_t> load_ns;
  Measured<int64_t> total_ns;
  Measured<double> prompt_tps;
  Measured<double> eval_tps;
};

// One streamed answer. Times are of base/clock.h, read when the bytes had arrived.
struct Completion {
  std::string text;
  std::string finish_reason;              // as the server says: "length", "stop"
  int64_t sent_ns = 0;                    // before the connection was made
  std::vector<int64_t> piece_ns;          // of every piece that had text
  std::vector<size_t> piece_bytes;        // of its text
  int64_t finished_ns = 0;                // of the piece that said why the answer ended
  Measured<int64_t> total_prompt_tokens;  // of the prompt, cached ones included
  ServerFigures server;
};

// What runs there. A field that the server does not report has the reason.
struct PeerInfo {
  std::string software;  // "Ollama", "llama-server", "vLLM", "OpenAI-compatible server"
  Measured<std::string> version;
  std::string address;
  std::string api;  // "Ollama's native API", "OpenAI's completions API"
  std::string model;
  Measured<std::string> architecture;
  Measured<uint64_t> parameters;
  Measured<std::string> quantisation;
  Measured<uint64_t> bytes;
  Measured<int64_t> context;
  Measured<std::string> device;
  Measured<uint64_t> memory_bytes;
  Measured<uint64_t> gpu_memory_bytes;
  bool ignores_stop_tokens = false;  // it continues to max_tokens, as we do
};

class Peer {
 public:
  virtual ~Peer() = default;

  // Streams one answer, greedily. Throws Error (kPeerUnavailable) where there is no whole one.
  virtual Completion complete(const CompletionRequest& request) = 0;

  // Asks what it can be asked; memory and device are known once a model is loaded.
  virtual PeerInfo info() = 0;
};

// Both ask the server whether it is there, is of that kind and has the model. If not, they throw
// Error (kPeerUnavailable) that says what to type.
std::unique_ptr<Peer> connect_ollama(const Address& address, HttpOptions options,
                                     const std::string& model);

// Without a name the only model that the server has; Error (kUsage) where it has several.
std::unique_ptr<Peer> connect_openai(const Address& address, HttpOptions options,
                                     const std::optional<std::string>& model);

}  // namespace edgellm::peers
