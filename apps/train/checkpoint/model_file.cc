#include "apps/train/checkpoint/model_file.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <iterator>
#include <system_error>
#include <type_traits>
#include <utility>

#include "apps/train/checkpoint/output_path.h"

namespace ddp::train {

namespace {

/// Calls body(place in PyTorch's order, place in the model's order) for every number of the tensor.
template <class Body>
void for_output_paths(const TensorInfo& tensor, Body body) {
  if (tensor.layout == Layout::kPlain) {
    for (std::size_t i = 0; i < tensor.size; ++i)
      body(i, i);
    return;
  }
  std::size_t torch = 0;
  const auto side = [&tensor](std::size_t i) { return static_cast<std::size_t>(tensor.shape[i]); };
  if (tensor.layout == Layout::kConvolution) {
    const std::size_t outs = side(0), ins = side(1), places = side(2) * side(3);
    for (std::size_t out = 0; out < outs; ++out)
      for (std::size_t in = 0; in < ins; ++in)
        for (std::size_t place = 0; place < places; ++place)
          body(torch++, (place * ins + in) * outs + out);
    return;
  }
  const std::size_t channels = static_cast<std::size_t>(tensor.channels), places = side(1) / channels;
  for (std::size_t out = 0; out < side(0); ++out)
    for (std::size_t channel = 0; channel < channels; ++channel)
      for (std::size_t place = 0; place < places; ++place)
        body(torch++, (out * places + place) * channels + channel);
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string text = "[";
  for (const std::int64_t side : shape)
    text += (text.size() > 1 ? ", " : "") + std::to_string(side);
  return text + "]";
}

/// Returns "layer1.1" for "layer1.1.weight".
std::string layer_of(const std::string& name) {
  return name.substr(0, std::min(name.rfind('.'), name.size()));
}

/// Suffix of the path while the file is being written.
constexpr const char* kUnfinishedSuffix = ".tmp";

template <class T>
constexpr TensorType kType = std::is_same_v<T, float> ? TensorType::kF32 : TensorType::kF64;

}  // namespace

template <class T>
void to_torch_order(const TensorInfo& tensor, std::span<const T> ours, std::span<T> torch) {
  for_output_paths(tensor, [&](std::size_t there, std::size_t here) { torch[there] = ours[here]; });
}

template <class T>
void from_torch_order(const TensorInfo& tensor, std::span<const T> torch, std::span<T> ours) {
  for_output_paths(tensor, [&](std::size_t there, std::size_t here) { ours[here] = torch[there]; });
}

template <class T>
ModelState<T>::ModelState(const Model<T>& model, std::span<const T> parameters, std::span<const T> running,
                          std::int64_t batches)
    : batches_(batches) {
  const auto add = [this](const std::vector<TensorInfo>& tensors, std::span<const T> from) {
    for (const TensorInfo& tensor : tensors) {
      std::span<const T> numbers = from.subspan(tensor.offset, tensor.size);
      if (tensor.layout != Layout::kPlain) {
        to_torch_order<T>(tensor, numbers, reordered_.emplace_back(tensor.size));
        numbers = reordered_.back();
      }
      views_.push_back({tensor.name, kType<T>, tensor.shape, std::as_bytes(numbers)});
    }
  };
  add(model.parameter_tensors(), parameters);
  add(model.running_tensors(), running);
  for (const std::string& name : model.counter_names())
    views_.push_back({name, TensorType::kI64, {}, std::as_bytes(std::span(&batches_, 1))});

  std::vector<std::string> layers;
  for (const TensorView& view : views_) {
    if (std::find(layers.begin(), layers.end(), layer_of(view.name)) == layers.end())
      layers.push_back(layer_of(view.name));
  }
  const auto place = [&layers](const TensorView& view) {
    return std::find(layers.begin(), layers.end(), layer_of(view.name)) - layers.begin();
  };
  std::stable_sort(views_.begin(), views_.end(),
                   [&place](const TensorView& a, const TensorView& b) { return place(a) < place(b); });
}

template <class T>
Result<> export_model(const std::string& path, Model<T>& model) {
  const ModelState<T> state(model, model.parameters(), model.running_statistics(), model.batches());
  const std::string unfinished = path + kUnfinishedSuffix;
  auto written = write_safetensors(unfinished, state.tensors(),
                                   {{"format", "pt"}, {"model", std::string(model.name())}});
  if (!written) return written.error();
  if (std::rename(unfinished.c_str(), path.c_str()) != 0) {
    const int error = errno;
    ::unlink(unfinished.c_str());
    return system_error(error, "rename " + unfinished + " to " + path);
  }
  return sync_directory(directory_of(path));
}

Result<> check_export_path(const std::string& path) {
  std::error_code ignored;
  const auto status = std::filesystem::status(path, ignored);
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status))
    return Error{ErrorCode::kUsage, "--export " + path + ": exists and is not a regular file"};
  return check_output_path("--export", path + kUnfinishedSuffix);
}

template <class T>
Result<> check_model(const Safetensors& file, const Model<T>& model) {
  const std::string name_of_model(model.name());
  const auto wrong = [&file](const std::string& name, const std::string& what) {
    return Error{ErrorCode::kUsage, file.path() + ": tensor " + name + what};
  };
  std::vector<TensorInfo> expected = model.parameter_tensors();
  std::ranges::copy(model.running_tensors(), std::back_inserter(expected));
  for (const std::string& name : model.counter_names())
    if (file.tensors().contains(name)) expected.push_back({.name = name});
  for (const TensorInfo& tensor : expected) {
    const auto found = file.tensors().find(tensor.name);
    if (found == file.tensors().end())
      return wrong(tensor.name, " is missing; check that the file is of --model " + name_of_model);
    if (found->second.shape != tensor.shape) {
      return wrong(tensor.name, " is " + shape_text(found->second.shape) + "; the " + name_of_model +
                                    " takes " + shape_text(tensor.shape));
    }
  }
  for (const auto& [name, tensor] : file.tensors()) {
    if (std::ranges::find(expected, name, &TensorInfo::name) == expected.end())
      return wrong(name, " is unknown to the " + name_of_model);
  }
  return {};
}

template <class T>
Result<> import_model(const std::string& path, Model<T>& model) {
  const auto file =
      Safetensors::read(path, [&model](const Safetensors& header) { return check_model<T>(header, model); });
  if (!file) return file.error();
  if (const std::string name = file->first_not_finite(); !name.empty())
    return Error{ErrorCode::kUsage, path + ": tensor " + name + " has a number that is not finite"};
  import_model<T>(*file, model);
  return {};
}

template <class T>
void import_model(const Safetensors& file, Model<T>& model) {
  const auto take = [&](const std::vector<TensorInfo>& tensors, std::span<T> to) {
    for (const TensorInfo& tensor : tensors) {
      std::vector<T> numbers(tensor.size);
      file.copy<T>(tensor.name, 0, numbers);
      from_torch_order<T>(tensor, numbers, to.subspan(tensor.offset, tensor.size));
    }
  };
  take(model.parameter_tensors(), model.parameters());
  take(model.running_tensors(), model.running_statistics());
  model.batches() = 0;
  for (const std::string& name : model.counter_names()) {
    const auto found = file.tensors().find(name);
    if (found != file.tensors().end() && found->second.type == TensorType::kI64)
      file.copy<std::int64_t>(name, 0, std::span(&model.batches(), 1));
  }
}

#define DDP_INSTANTIATE(T)                                                                \
  template void to_torch_order<T>(const TensorInfo&, std::span<const T>, std::span<T>);   \
  template void from_torch_order<T>(const TensorInfo&, std::span<const T>, std::span<T>); \
  template class ModelState<T>;                                                           \
  template Result<> export_model<T>(const std::string&, Model<T>&);                       \
  template Result<> check_model<T>(const Safetensors&, const Model<T>&);                  \
  template void import_model<T>(const Safetensors&, Model<T>&);                           \
  template Result<> import_model<T>(const std::string&, Model<T>&);
DDP_INSTANTIATE(float)
DDP_INSTANTIATE(double)
#undef DDP_INSTANTIATE

}  // namespace ddp::train
