#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"

namespace ddp::train {

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

}  // namespace ddp::train
