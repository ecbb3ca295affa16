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

/// Computes an image of kImagePixels bytes and gives its label. Any thread.
using DrawImage = std::function<std::uint8_t(std::size_t number, std::uint8_t* image)>;

/// Images of kImagePixels bytes (0 black to 255 white, row by row) with labels below kClasses: in memory, or
/// drawn when they are needed.
struct Dataset {
  std::span<const std::uint8_t> images;
  std::span<const std::uint8_t> labels;
  DrawImage draw;                                ///< set: images and labels are empty
  std::size_t drawn = 0;                         ///< how many images `draw` gives
  std::shared_ptr<const void> memory = nullptr;  ///< in which images and labels lie

  /// Of those images.
  static Dataset of(std::vector<std::uint8_t> images, std::vector<std::uint8_t> labels);
  std::size_t size() const { return draw ? drawn : labels.size(); }
};

struct DataSplit {
  Dataset training;
  Dataset test;
  /// crc32_of() of the training images, training labels, test images and test labels, in this order; 0 of
  /// those that are drawn, and where load_data() has not computed it.
  std::array<std::uint32_t, 4> checksums{};
};

/// `where`: a directory with the four IDX files of MNIST or Fashion-MNIST, plain or .gz, or "synthetic". Of
/// the training images only the first `limit` are kept; 0: all. Every rank loads all. Errors name the file
/// and what is wrong with it.
Result<DataSplit> load_data(const std::string& where, std::size_t limit);

/// Blurred prototypes of ten classes, moved and covered with noise; image i is the same whatever the count.
/// As many training images as Fashion-MNIST has (60,000) unless `limit` says how many, fewer or more; beyond
/// 60,000 they are drawn when they are needed. Up to 10,000 test images.
DataSplit synthetic_data(std::size_t limit);

/// Copies the images of `samples` as value / 255, with `border` zero pixels around each, and their labels.
template <class T>
void fill_batch(const Dataset& data, std::span<const std::uint32_t> samples, int border, T* images,
                std::span<std::uint8_t> labels);

}  // namespace ddp::train
