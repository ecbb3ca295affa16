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
