// What a program makes the GPU do in its last 100 graph launches: with edgellm, 100 decoded tokens.
// Counts the calls of the CUDA runtime, kernels, copies and allocations between the first and the
// last of those launches. Needs the CUDA toolkit 13 and its CUPTI.
//
//   nvcc -std=c++17 -shared -Xcompiler -fPIC -o libgpu_trace.so tools/gpu_trace.cpp -lcupti
//   CUDA_INJECTION64_PATH=$PWD/libgpu_trace.so edgellm run MODEL -p "Once" -n 300 --ignore-eos
//
// The table goes to standard error, or to the file that EDGELLM_TRACE names.
#include <cupti.h>
#include <cxxabi.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace {

constexpr size_t kLaunches = 100;
constexpr size_t kBufferBytes = size_t{8} << 20;

struct Event {
  std::string name;
  uint64_t start = 0;  // ns
  uint64_t end = 0;
  uint64_t bytes = 0;
};

struct Records {
  std::mutex mutex;
  std::vector<Event> calls, kernels, copies, allocations;
  size_t dropped = 0;
};

// Never destroyed: CUPTI may call until the process is gone.
Records& records() {
  static Records* all = new Records;
  return *all;
}

void check(CUptiResult result, const char* what) {
  if (result == CUPTI_SUCCESS) return;
  const char* reason = "unknown";
  cuptiGetResultString(result, &reason);
  std::fprintf(stderr, "gpu_trace: %s: %s\n", what, reason);
}

// A kernel's name without its arguments, template parameters kept.
std::string kernel_name(const char* mangled) {
  int status = 0;
  char* text = abi::__cxa_demangle(mangled, nullptr, nullptr, &status);
  std::string name = status == 0 ? text : mangled;
  std::free(text);
  for (const char* word : {"void ", "edgellm::", "cuda::", "(anonymous namespace)::"}) {
    const std::string drop = word;
    for (size_t at; (at = name.find(drop)) != std::string::npos;) name.erase(at, drop.size());
  }
  // Template arguments may hold parentheses: (DenseType)2.
  const size_t end = name.find(">(");
  return end != std::string::npos ? name.substr(0, end + 1) : name.substr(0, name.find('('));
}

std::string call_name(CUpti_CallbackId id) {
  const char* name = nullptr;
  cuptiGetCallbackName(CUPTI_CB_DOMAIN_RUNTIME_API, id, &name);
  return name == nullptr ? "call " + std::to_string(id) : name;
}

std::string copy_name(uint8_t kind) {
  switch (kind) {
    case CUPTI_ACTIVITY_MEMCPY_KIND_HTOD:
      return "copy, host to device";
    case CUPTI_ACTIVITY_MEMCPY_KIND_DTOH:
      return "copy, device to host";
    default:
      return "copy, other";
  }
}

void keep(const CUpti_Activity* record) {
  Records& all = records();
  switch (record->kind) {
    case CUPTI_ACTIVITY_KIND_RUNTIME: {
      const auto* call = reinterpret_cast<const CUpti_ActivityAPI*>(record);
      all.calls.push_back({call_name(call->cbid), call->start, call->end, 0});
      break;
    }
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: {
      const auto* kernel = reinterpret_cast<const CUpti_ActivityKernel10*>(record);
      all.kernels.push_back({kernel_name(kernel->name), kernel->start, kernel->end, 0});
      break;
    }
    case CUPTI_ACTIVITY_KIND_MEMCPY: {
      const auto* copy = reinterpret_cast<const CUpti_ActivityMemcpy6*>(record);
      all.copies.push_back({copy_name(copy->copyKind), copy->start, copy->end, copy->bytes});
      break;
    }
    case CUPTI_ACTIVITY_KIND_MEMSET: {
      const auto* set = reinterpret_cast<const CUpti_ActivityMemset4*>(record);
      all.copies.push_back({"memset", set->start, set->end, set->bytes});
      break;
    }
    case CUPTI_ACTIVITY_KIND_MEMORY2: {
      const auto* memory = reinterpret_cast<const CUpti_ActivityMemory4*>(record);
      all.allocations.push_back(
          {"allocation or release", memory->timestamp, memory->timestamp, memory->bytes});
      break;
    }
    default:
      break;
  }
}

void CUPTIAPI give_buffer(uint8_t** buffer, size_t* bytes, size_t* max_records) {
  *buffer = static_cast<uint8_t*>(std::aligned_alloc(8, kBufferBytes));
  *bytes = *buffer == nullptr ? 0 : kBufferBytes;
  *max_records = 0;
}

void CUPTIAPI take_buffer(CUcontext, uint32_t, uint8_t* buffer, size_t, size_t valid_bytes) {
  const std::lock_guard<std::mutex> lock(records().mutex);
  CUpti_Activity* record = nullptr;
  while (cuptiActivityGetNextRecord(buffer, valid_bytes, &record) == CUPTI_SUCCESS) keep(record);
  size_t dropped = 0;
  cuptiActivityGetNumDroppedRecords(nullptr, 0, &dropped);
  records().dropped += dropped;
  std::free(buffer);
}

// One line a name: how often it began in [from, to), per token, and how long it took on average.
void print_group(FILE* out, const char* title, const std::vector<Event>& events, uint64_t from,
                 uint64_t to, double tokens) {
  struct Sum {
    size_t count = 0;
    uint64_t ns = 0, bytes = 0;
  };
  std::map<std::string, Sum> sums;
  for (const Event& event : events) {
    if (event.start < from || event.start >= to) continue;
    Sum& sum = sums[event.name];
    ++sum.count;
    sum.ns += event.end - event.start;
    sum.bytes += event.bytes;
  }
  if (sums.empty()) std::fprintf(out, "%-14s none\n", title);
  for (const auto& [name, sum] : sums) {
    std::fprintf(out, "%-14s %-44s %8zu  %8.2f a token  %9.2f us each  %llu bytes\n", title,
                 name.c_str(), sum.count, static_cast<double>(sum.count) / tokens,
                 static_cast<double>(sum.ns) / 1e3 / static_cast<double>(sum.count),
                 static_cast<unsigned long long>(sum.bytes));
  }
}

void print_summary() {
  check(cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED), "flushing");
  const std::lock_guard<std::mutex> lock(records().mutex);
  const Records& all = records();
  std::vector<uint64_t> launches;
  for (const Event& call : all.calls) {
    if (call.name.find("cudaGraphLaunch") == 0) launches.push_back(call.start);
  }
  std::sort(launches.begin(), launches.end());
  const char* path = std::getenv("EDGELLM_TRACE");
  FILE* out = path == nullptr ? stderr : std::fopen(path, "w");
  if (out == nullptr) return;
  if (launches.size() <= kLaunches) {
    std::fprintf(out, "gpu_trace: %zu graph launches, expected more than %zu\n", launches.size(),
                 kLaunches);
  } else {
    const uint64_t from = launches[launches.size() - 1 - kLaunches];
    const uint64_t to = launches.back();
    std::fprintf(out, "%zu graph launches in %.3f ms; %zu records dropped\n", kLaunches,
                 static_cast<double>(to - from) / 1e6, all.dropped);
    const double tokens = static_cast<double>(kLaunches);
    print_group(out, "runtime call", all.calls, from, to, tokens);
    print_group(out, "kernel", all.kernels, from, to, tokens);
    print_group(out, "copy, memset", all.copies, from, to, tokens);
    print_group(out, "allocation", all.allocations, from, to, tokens);
  }
  if (path != nullptr) std::fclose(out);
}

}  // namespace

// Called by the CUDA driver when it starts.
extern "C" int InitializeInjection() {
  check(cuptiActivityRegisterCallbacks(give_buffer, take_buffer), "registering callbacks");
  for (CUpti_ActivityKind kind :
       {CUPTI_ACTIVITY_KIND_RUNTIME, CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
        CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_MEMSET, CUPTI_ACTIVITY_KIND_MEMORY2}) {
    check(cuptiActivityEnable(kind), "recording");
  }
  std::atexit(print_summary);
  return 1;
}
