#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "apps/train/model/model.h"
#include "base/result.h"

namespace ddp::train {

/// Returns an error that begins with the option and the path if no file can be written at `path`. An existing
/// file stays unchanged, and a new one is removed again. A path that is no regular file (a pipe, /dev/null)
/// is not touched.
Result<> check_output_path(const std::string& option, const std::string& path);

/// Returns the directory that holds `path`.
std::string directory_of(const std::string& path);
/// Flushes a directory's entries to the disk.
Result<> sync_directory(const std::string& path);

enum class TensorType : std::uint8_t { kF32, kF64, kI64 };

std::size_t size_of(TensorType type);

/// A tensor whose numbers belong to another object.
struct TensorView {
  std::string name;
  TensorType type = TensorType::kF32;
  std::vector<std::int64_t> shape;   ///< empty: one number
  std::span<const std::byte> bytes;  ///< little-endian, row order
};

/// Writes a file and flushes it to the disk. Space is reserved first, so that a full disk is an error before
/// a byte is written. An unfinished file is removed. Errors: kSystem with the path. Returns the file's
/// CRC-32.
Result<std::uint32_t> write_file(const std::string& path, std::span<const std::span<const std::byte>> pieces);
/// The same in the safetensors format (https://huggingface.co/docs/safetensors, "Format"): 8 bytes length of
/// the header, the header in JSON, the numbers.
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

/// A model's state_dict, with PyTorch's names, shapes and order of numbers.
template <class T>
class ModelState {
 public:
  /// `parameters` and `running` must outlive this object. `batches`: number of batches in the running
  /// statistics.
  ModelState(const Model<T>& model, std::span<const T> parameters, std::span<const T> running,
             std::int64_t batches);
  ModelState(const ModelState&) = delete;
  ModelState& operator=(const ModelState&) = delete;

  /// Returns views in the order of a state_dict: layer after layer, each with parameters, running statistics
  /// and counter.
  const std::vector<TensorView>& tensors() const { return views_; }

 private:
  std::vector<std::vector<T>> reordered_;  ///< the tensors that do not lie in PyTorch's order
  std::int64_t batches_;
  std::vector<TensorView> views_;
};

/// Returns whether no number is nan or infinite.
template <class T>
bool all_finite(std::span<const T> values) {
  return std::all_of(values.begin(), values.end(), [](T value) { return std::isfinite(value); });
}

/// Converts the numbers of one tensor from the order in the model into PyTorch's, and back.
template <class T>
void to_torch_order(const TensorInfo& tensor, std::span<const T> ours, std::span<T> torch);
template <class T>
void from_torch_order(const TensorInfo& tensor, std::span<const T> torch, std::span<T> ours);

/// Writes `path` as a whole: an existing file stays until the new one is complete.
template <class T>
Result<> export_model(const std::string& path, Model<T>& model);

/// Returns an error that names --export if export_model could not write there. Leaves no file.
Result<> check_export_path(const std::string& path);

/// Checks the file's header: kUsage unless it has all of the model's tensors, with their shapes, and no
/// others. Counters may be missing. Errors name the file and the tensor.
template <class T>
Result<> check_model(const Safetensors& file, const Model<T>& model);

/// Copies parameters, running statistics and batches() (0 if the file has no counter) from a file of
/// export_model or of PyTorch. The file must have passed check_model(). Numbers of the other width are
/// converted.
template <class T>
void import_model(const Safetensors& file, Model<T>& model);
/// Checks and imports the file at `path`.
template <class T>
Result<> import_model(const std::string& path, Model<T>& model);

}  // namespace ddp::train
