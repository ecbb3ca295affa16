#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"

namespace ddp::train {

/// Images of kImagePixels bytes (0 black to 255 white, row by row) with labels below kClasses.
struct Dataset {
  std::vector<std::uint8_t> images;
  std::vector<std::uint8_t> labels;

  std::size_t size() const { return labels.size(); }
};

struct DataSplit {
  Dataset training;
  Dataset test;
};

/// `where`: a directory with the four IDX files of MNIST or Fashion-MNIST, plain or .gz, or "synthetic". Of
/// the training images only the first `limit` are kept; 0: all. Every rank loads all. Errors name the file
/// and what is wrong with it.
Result<DataSplit> load_data(const std::string& where, std::size_t limit);

/// Blurred prototypes of ten classes, moved and covered with noise; image i is the same whatever the count.
/// As many as Fashion-MNIST has (60,000 and 10,000) unless limited.
DataSplit synthetic_data(std::size_t limit);

/// Copies the images of `samples` as value / 255 into padded images with zero borders, and their labels.
template <class T>
void fill_batch(const Dataset& data, std::span<const std::uint32_t> samples, T* padded,
                std::span<std::uint8_t> labels);

}  // namespace ddp::train
