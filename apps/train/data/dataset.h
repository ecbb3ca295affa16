#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"

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

}  // namespace ddp::train
