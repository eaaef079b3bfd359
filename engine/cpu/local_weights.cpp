#include "engine/cpu/local_weights.h"

#include <algorithm>
#include <cstring>
#include <system_error>
#include <thread>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/number_format.h"
#include "kernels/cpu/machine.h"
#include "model/layout.h"

namespace edgellm {

namespace {

constexpr size_t kAlignment = model_io::kSectionAlignment;

// Bytes of a row of `cols` values of the type.
size_t row_bytes(DType dtype, int64_t cols) {
  const auto bytes = model_io::tensor_bytes(dtype, {1, cols});
  require(bytes.has_value(), "a row of a model");
  return static_cast<size_t>(*bytes);
}

// An array with a part for each row of a matrix, and the pointer to it that moves to the copy.
struct Rows {
  const std::byte* from;
  size_t row_bytes;
  int rows;
  size_t offset = 0;  // in the copy

  size_t bytes() const { return row_bytes * static_cast<size_t>(rows); }
};

// What is to be copied: matrices that one op takes as one, their rows counted on.
class CopyPlan {
 public:
  using Product = std::vector<Rows>;

  void add(const std::vector<TernaryTensor*>& matrices) {
    Product codes;
    Product scales;
    for (TernaryTensor* matrix : matrices) {
      if (matrix->codes == nullptr) continue;
      codes.push_back({as_bytes(matrix->codes), matrix->row_bytes(), matrix->rows});
      if (matrix->group_scale == nullptr) continue;
      scales.push_back({matrix->group_scale,
                        row_bytes(matrix->group_scale_dtype, model_io::group_count(matrix->cols)),
                        matrix->rows});
    }
    add(std::move(codes));
    add(std::move(scales));
  }
  void add(const DenseTensor& matrix) {
    if (matrix.data == nullptr) return;
    add(Product{{matrix.data, row_bytes(matrix.dtype, matrix.cols), matrix.rows}});
  }

  // With some bytes behind the last row, as in the file.
  size_t bytes() const { return bytes_ + kAlignment; }

  // Where the copy of the array `from` is; `from` itself where it is not copied, or null.
  template <class T>
  const T* moved(const T* from, std::byte* to) const {
    for (const Product& product : products_) {
      for (const Rows& rows : product) {
        if (rows.from == as_bytes(from)) return reinterpret_cast<const T*>(to + rows.offset);
      }
    }
    return from;
  }

  // Copies share `thread` of `threads` of every product.
  void copy(size_t thread, size_t threads, std::byte* to) const {
    for (const Product& product : products_) {
      size_t all = 0;
      for (const Rows& rows : product) all += static_cast<size_t>(rows.rows);
      size_t first = 0;  // row of the product that this matrix begins with
      for (const Rows& rows : product) {
        const size_t last = first + static_cast<size_t>(rows.rows);
        const size_t begin = std::max(all * thread / threads, first);
        const size_t end = std::min(all * (thread + 1) / threads, last);
        if (begin < end) {
          const size_t at = (begin - first) * rows.row_bytes;
          std::memcpy(to + rows.offset + at, rows.from + at, (end - begin) * rows.row_bytes);
        }
        first = last;
      }
    }
  }

 private:
  template <class T>
  static const std::byte* as_bytes(const T* data) {
    return reinterpret_cast<const std::byte*>(data);
  }

  void add(Product product) {
    for (Rows& rows : product) {
      rows.offset = bytes_;
      bytes_ += (rows.bytes() + kAlignment - 1) / kAlignment * kAlignment;
    }
    products_.push_back(std::move(product));
  }

  std::vector<Product> products_;
  size_t bytes_ = 0;
};

void move(const CopyPlan& plan, std::byte* to, TernaryTensor& matrix) {
  matrix.codes = plan.moved(matrix.codes, to);
  matrix.group_scale = plan.moved(matrix.group_scale, to);
}

// The matrices of a layer, those together that one op takes as one.
std::vector<std::vector<TernaryTensor*>> products_of(LayerWeights& layer) {
  return {{&layer.q, &layer.k, &layer.v}, {&layer.o}, {&layer.gate}, {&layer.up}, {&layer.down}};
}

}  // namespace

LocalWeights::LocalWeights(const ModelFile& model,
                           const std::vector<std::vector<int>>& cpus_of_threads)
    : weights_(model.weights()) {
  const int64_t start_ns = now_ns();
  CopyPlan plan;
  for (LayerWeights& layer : weights_.layers) {
    for (const auto& product : products_of(layer)) plan.add(product);
  }
  plan.add(weights_.head);
  plan.add({&weights_.ternary_head});
  memory_.emplace(plan.bytes(), "a copy of the weights near the cores",
                  "--no-numa does without it");

  const auto copy_share = [&](size_t thread) {
    plan.copy(thread, cpus_of_threads.size(), memory_->data());
  };
  std::vector<std::jthread> threads;
  for (size_t t = 0; t < cpus_of_threads.size(); ++t) {
    try {
      threads.emplace_back([&, t] {
        cpu::bind_this_thread(cpus_of_threads[t]);
        copy_share(t);
      });
    } catch (const std::system_error&) {  // no more threads: the bytes count, then their place
      copy_share(t);
    }
  }
  threads.clear();

  for (LayerWeights& layer : weights_.layers) {
    model.release_pages(layer);
    for (const auto& product : products_of(layer)) {
      for (TernaryTensor* matrix : product) move(plan, memory_->data(), *matrix);
    }
  }
  model.release_pages(weights_.head);
  model.release_pages(weights_.ternary_head);
  weights_.head.data = plan.moved(weights_.head.data, memory_->data());
  weights_.embedding.data = plan.moved(weights_.embedding.data, memory_->data());
  move(plan, memory_->data(), weights_.ternary_head);
  move(plan, memory_->data(), weights_.ternary_embedding);
  if (log_enabled(LogLevel::kDebug)) {
    log(LogLevel::kDebug, "copied " + human_bytes(memory_->bytes()) +
                              " of weights to the memory of their nodes in " +
                              human_ms(now_ns() - start_ns));
  }
}

}  // namespace edgellm
