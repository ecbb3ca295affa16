#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "apps/train/data/dataset.h"
#include "apps/train/kernels/cpu/aligned_buffer.h"

namespace ddp::train {

/// Makes the batches of one epoch ahead of the step, on a thread of its own.
template <class T>
class BatchLoader {
 public:
  struct Batch {
    AlignedBuffer<T> images;
    std::vector<std::uint8_t> labels;
    std::span<const std::uint32_t> samples;
  };

  /// `data` must outlive this. The last batch may be smaller.
  BatchLoader(const Dataset& data, std::vector<std::uint32_t> order, std::size_t batch_size, int border);
  ~BatchLoader();
  BatchLoader(const BatchLoader&) = delete;
  BatchLoader& operator=(const BatchLoader&) = delete;

  std::size_t batches() const { return (order_.size() + batch_size_ - 1) / batch_size_; }
  /// Waits for the next batch, which stays unchanged until the next call. At most batches() calls are
  /// allowed.
  Batch& next();

 private:
  static constexpr std::size_t kSlots = 3;  ///< one in use, two ready
  void fill_ahead();

  const Dataset& data_;
  std::vector<std::uint32_t> order_;
  std::size_t batch_size_;
  int border_;
  std::mutex mutex_;
  std::condition_variable filled_changed_, taken_changed_;
  std::size_t filled_ = 0, taken_ = 0;
  bool stop_ = false;
  Batch slots_[kSlots];
  std::thread thread_;
};

}  // namespace ddp::train
