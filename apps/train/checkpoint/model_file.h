#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "apps/train/checkpoint/safetensors.h"
#include "apps/train/model/model.h"
#include "base/result.h"

namespace ddp::train {

/// A model's state_dict: PyTorch's names, shapes and order of numbers, in memory of its own.
template <class T>
class ModelState {
 public:
  /// `batches`: how many the running statistics have seen.
  ModelState(const Model<T>& model, std::span<const T> parameters, std::span<const T> running,
             std::int64_t batches);
  std::vector<TensorView> tensors() const;

 private:
  struct TensorSlice {
    std::string name;
    std::vector<std::int64_t> shape;
    std::size_t offset, size;
  };
  std::vector<TensorSlice> slices_;
  std::vector<T> numbers_;
  std::vector<std::string> counters_;
  std::int64_t batches_;
};

/// No number is a nan or infinite.
template <class T>
bool all_finite(std::span<const T> values) {
  return std::all_of(values.begin(), values.end(), [](T value) { return std::isfinite(value); });
}

/// Numbers of one tensor from our order into PyTorch's, and back.
template <class T>
void to_torch_order(const TensorInfo& tensor, std::span<const T> ours, std::span<T> torch);
template <class T>
void from_torch_order(const TensorInfo& tensor, std::span<const T> torch, std::span<T> ours);

/// Writes `path` as a whole: what was there before stays until the new file is complete.
template <class T>
Result<> export_model(const std::string& path, Model<T>& model);

/// Whether export_model could write there, as an error that names --export. Leaves nothing.
Result<> check_export_path(const std::string& path);

/// By the file's header: kUsage unless it has all of the model's tensors, with their shapes, and no others;
/// counters may lack. Errors name the file and the tensor.
template <class T>
Result<> check_model(const Safetensors& file, const Model<T>& model);

/// Parameters, running statistics and batches() (0 where the file has no counter) from a file of export_model
/// or of PyTorch that has passed check_model(); numbers of the other width are converted.
template <class T>
void import_model(const Safetensors& file, Model<T>& model);
/// The same of the file at `path`, which is checked.
template <class T>
Result<> import_model(const std::string& path, Model<T>& model);

}  // namespace ddp::train
