#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"

namespace ddp::train {

enum class TensorType : std::uint8_t { kF32, kF64, kI64 };

std::size_t size_of(TensorType type);

/// A tensor whose numbers belong to another object.
struct TensorView {
  std::string name;
  TensorType type = TensorType::kF32;
  std::vector<std::int64_t> shape;   ///< empty: one number
  std::span<const std::byte> bytes;  ///< little-endian, row order
};

/// Writes a file in the safetensors format (https://huggingface.co/docs/safetensors, "Format"): 8 bytes
/// length of the header, the header in JSON, the numbers. It is flushed to the disk. Space is reserved first,
/// so that a full disk is an error before a byte is written. An unfinished file is removed. Errors: kSystem
/// with the path. Returns the file's CRC-32.
Result<std::uint32_t> write_safetensors(const std::string& path, std::span<const TensorView> tensors,
                                        const std::map<std::string, std::string>& metadata);

/// A file in memory.
class Safetensors {
 public:
  struct Tensor {
    TensorType type = TensorType::kF32;
    std::vector<std::int64_t> shape;
    std::size_t begin = 0, end = 0;  ///< byte range behind the header
  };

  /// Called when names, types and shapes are known, and the numbers are not.
  using CheckHeader = std::function<Result<>(const Safetensors&)>;

  /// Errors (kUsage, or kSystem with errno) begin with the path. The header is read first. Memory for the
  /// numbers is taken only after two checks: the tensors, of the three types above, account for the file's
  /// whole size, and `check` has passed.
  static Result<Safetensors> read(const std::string& path, const CheckHeader& check);

  const std::map<std::string, Tensor>& tensors() const { return tensors_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  const std::string& path() const { return path_; }
  /// Returns the CRC-32 of the whole file.
  std::uint32_t crc32() const { return crc_; }
  /// Returns the name of a tensor with a nan or an infinite number; empty: there is none.
  std::string first_not_finite() const;
  /// Copies `to.size()` of a tensor's numbers from number `first` on, converted from the type in the file.
  /// False: no such tensor, or too few numbers.
  template <class T>
  bool copy(const std::string& name, std::size_t first, std::span<T> to) const;
  std::size_t count(const Tensor& tensor) const { return (tensor.end - tensor.begin) / size_of(tensor.type); }

 private:
  /// Fills the maps; `numbers` bytes follow the header. Returns an error text, or an empty one.
  std::string read_header(std::span<const std::byte> header, std::size_t numbers);

  std::string path_;
  std::uint32_t crc_ = 0;
  std::vector<std::byte> bytes_;  ///< content behind the header
  std::map<std::string, Tensor> tensors_;
  std::map<std::string, std::string> metadata_;
};

}  // namespace ddp::train
