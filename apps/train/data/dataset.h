#pragma once

#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "apps/train/kernels/cpu/aligned_buffer.h"
#include "apps/train/kernels/cpu/kernel_table.h"
#include "base/result.h"
#include "base/unique_fd.h"

namespace ddp::train {

/// Computes an image of kImagePixels bytes and returns its label. Any thread may call it.
using DrawImage = std::function<std::uint8_t(std::size_t number, std::uint8_t* image)>;

/// Images of kImagePixels bytes (0 black to 255 white, row by row) with labels below kClasses. They are in
/// memory, or drawn on demand.
struct Dataset {
  std::span<const std::uint8_t> images;
  std::span<const std::uint8_t> labels;
  DrawImage draw;                                ///< set: images and labels are empty
  std::size_t drawn = 0;                         ///< number of images that `draw` gives
  std::shared_ptr<const void> memory = nullptr;  ///< keeps images and labels alive

  /// Takes over the given images and labels.
  static Dataset of(std::vector<std::uint8_t> images, std::vector<std::uint8_t> labels);
  std::size_t size() const { return draw ? drawn : labels.size(); }
};

struct DataSplit {
  Dataset training;
  Dataset test;
  /// crc32_of() of the training images, training labels, test images and test labels, in this order. 0: the
  /// images are drawn, or load_data() has not computed the checksum.
  std::array<std::uint32_t, 4> checksums{};
};

/// `where` is "synthetic", or a directory with the four IDX files of MNIST or Fashion-MNIST, plain or .gz.
/// Only the first `limit` training images are kept; 0: all. Every rank loads all. Errors name the file and
/// its fault.
Result<DataSplit> load_data(const std::string& where, std::size_t limit);

/// Returns whether the directory has at least one of the four files.
bool has_data_files(const std::string& directory);

/// Blurred prototypes of ten classes, moved and covered with noise; image i does not depend on the count.
/// There are `limit` training images (0: 60,000, like Fashion-MNIST) and up to 10,000 test images. More than
/// 60,000 training images are drawn on demand.
DataSplit synthetic_data(std::size_t limit);

/// Copies the images of `samples` as value / 255, with `border` zero pixels around each, and their labels.
template <class T>
void fill_batch(const Dataset& data, std::span<const std::uint32_t> samples, int border, T* images,
                std::span<std::uint8_t> labels);

/// An array of unsigned bytes in the IDX format of the MNIST files (http://yann.lecun.com/exdb/mnist, "file
/// format").
struct IdxArray {
  std::vector<std::uint32_t> sizes;  ///< of each dimension, slowest first
  std::vector<std::uint8_t> bytes;
};

/// Reads a whole plain or gzip file; bytes behind the array are an error. The array must have `dimensions`
/// dimensions and at most `max_bytes` bytes. No memory is taken before the header fits the file's size.
/// Errors (kUsage, or kSystem with errno) begin with the path.
Result<IdxArray> read_idx(const std::string& path, int dimensions, std::uint64_t max_bytes);

/// Says where another process of the node finds a training's data. It consists of numbers, so that ranks can
/// gather it. All zero: there is no such memory.
struct DataTicket {
  std::uint64_t node = 0;  ///< number of the node in the job
  std::uint64_t pid = 0;
  std::uint64_t fd = 0;
  std::uint64_t size = 0;
  std::uint64_t nonce = 0;   ///< random number of this memory, also written into it
  std::uint64_t source = 0;  ///< hash of the data's origin (data_source())
};

/// A training's data in a memfd that is sealed against any change. A process that joins a running job maps
/// the memory of another rank of its node instead of reading and unpacking files. Data that is drawn on
/// demand has no such memory.
class DataMemory {
 public:
  /// Copies `data` into a new memfd; empty if there is nothing to copy.
  static Result<std::optional<DataMemory>> make(const DataSplit& data, std::uint64_t source);
  /// Maps the memory of another process. Any difference from the ticket is an error: the caller then loads
  /// the data itself.
  static Result<DataMemory> open(const DataTicket& ticket);

  /// Images and labels lie in the mapping, which lives as long as this object or a Dataset of it.
  DataSplit data() const;
  DataTicket ticket(std::uint64_t node) const;

 private:
  DataMemory(UniqueFd fd, std::shared_ptr<const MappedBytes> mapping)
      : fd_(std::move(fd)), mapping_(std::move(mapping)) {}
  static Result<DataMemory> map(UniqueFd fd, std::size_t size);

  UniqueFd fd_;
  std::shared_ptr<const MappedBytes> mapping_;
};

/// Hashes --data and --limit.
std::uint64_t data_source(const std::string& where, std::size_t limit);

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
  BatchLoader(const Dataset& data, std::vector<std::uint32_t> order, std::size_t batch_size, int border)
      : data_(data), order_(std::move(order)), batch_size_(batch_size), border_(border) {
    const std::size_t side = static_cast<std::size_t>(kImageSide + 2 * border);
    const std::size_t most = std::min(batch_size_, order_.size());
    for (Batch& slot : slots_)
      slot.images = AlignedBuffer<T>(most * side * side);
    thread_ = std::thread(&BatchLoader::fill_ahead, this);
  }

  ~BatchLoader() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    taken_changed_.notify_one();
    thread_.join();
  }

  BatchLoader(const BatchLoader&) = delete;
  BatchLoader& operator=(const BatchLoader&) = delete;

  std::size_t batches() const { return (order_.size() + batch_size_ - 1) / batch_size_; }
  /// Waits for the next batch, which stays unchanged until the next call. At most batches() calls are
  /// allowed.
  Batch& next() {
    std::unique_lock lock(mutex_);
    filled_changed_.wait(lock, [this] { return filled_ > taken_; });
    Batch& batch = slots_[taken_ % kSlots];
    ++taken_;
    taken_changed_.notify_one();
    return batch;
  }

 private:
  static constexpr std::size_t kSlots = 3;  ///< one in use, two ready
  void fill_ahead() {
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
