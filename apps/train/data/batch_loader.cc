#include "apps/train/data/batch_loader.h"

#include <algorithm>
#include <utility>

#include "apps/train/data/image_size.h"

namespace ddp::train {

template <class T>
BatchLoader<T>::BatchLoader(const Dataset& data, std::vector<std::uint32_t> order, std::size_t batch_size,
                            int border)
    : data_(data), order_(std::move(order)), batch_size_(batch_size), border_(border) {
  const std::size_t side = static_cast<std::size_t>(kImageSide + 2 * border);
  const std::size_t most = std::min(batch_size_, order_.size());
  for (Batch& slot : slots_)
    slot.images = AlignedBuffer<T>(most * side * side);
  thread_ = std::thread(&BatchLoader::fill_ahead, this);
}

template <class T>
BatchLoader<T>::~BatchLoader() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  taken_changed_.notify_one();
  thread_.join();
}

template <class T>
auto BatchLoader<T>::next() -> Batch& {
  std::unique_lock lock(mutex_);
  filled_changed_.wait(lock, [this] { return filled_ > taken_; });
  Batch& batch = slots_[taken_ % kSlots];
  ++taken_;
  taken_changed_.notify_one();
  return batch;
}

template <class T>
void BatchLoader<T>::fill_ahead() {
  for (std::size_t number = 0; number < batches(); ++number) {
    {
      // The batch that next() returned last stays untouched until the next call.
      std::unique_lock lock(mutex_);
      taken_changed_.wait(lock,
                          [&] { return stop_ || number < kSlots + std::max<std::size_t>(taken_, 1) - 1; });
      if (stop_) return;
    }
    Batch& slot = slots_[number % kSlots];
    const std::size_t begin = number * batch_size_;
    slot.samples = std::span(order_).subspan(begin, std::min(batch_size_, order_.size() - begin));
    slot.labels.resize(slot.samples.size());
    fill_batch<T>(data_, slot.samples, border_, slot.images.data(), slot.labels);
    const std::lock_guard lock(mutex_);
    ++filled_;
    filled_changed_.notify_one();
  }
}

template class BatchLoader<float>;
template class BatchLoader<double>;

}  // namespace ddp::train
