#include "apps/train/checkpoint/model_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <optional>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <utility>

#include "apps/train/data/hash.h"
#include "apps/train/kernels/cpu/aligned_buffer.h"
#include "base/files.h"
#include "base/unique_fd.h"

namespace ddp::train {

std::string directory_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash + 1);
}

Result<> sync_directory(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd || ::fsync(fd.get()) != 0) return system_error(errno, "fsync " + path);
  return {};
}

Result<> check_output_path(const std::string& option, const std::string& path) {
  const std::string what = option + " " + path;
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0) {
    if (S_ISDIR(status.st_mode)) return usage_error(what, ": is a directory; name a file");
    if (!S_ISREG(status.st_mode)) return {};
    const UniqueFd there(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
    return there ? Result<>() : system_error(errno, what);
  }
  // Only an attempt shows it: access() knows no quota.
  const UniqueFd made(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (made) {
    ::unlink(path.c_str());
    return {};
  }
  if (errno != ENOENT) return system_error(errno, what);
  const std::string directory = directory_of(path);
  const bool there = ::stat(directory.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
  return Error{ErrorCode::kUsage,
               what + (there ? ": no file can be created in " : ": there is no directory ") + directory,
               ENOENT};
}

namespace {

constexpr std::size_t kLengthBytes = 8;
/// The format allows 100 MB. The largest model here needs 400 KB; the rest is for others' metadata.
constexpr std::uint64_t kMaxHeader = 4 << 20;
constexpr std::uint64_t kMaxFile = std::uint64_t{1} << 40;
constexpr std::pair<TensorType, const char*> kTypes[] = {
    {TensorType::kF32, "F32"}, {TensorType::kF64, "F64"}, {TensorType::kI64, "I64"}};

std::optional<TensorType> type_of(std::string_view text) {
  for (const auto& [type, name] : kTypes) {
    if (text == name) return type;
  }
  return std::nullopt;
}

std::string header_of(std::span<const TensorView> tensors,
                      const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();  // in the order of the tensors
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::size_t at = 0;
  for (const TensorView& tensor : tensors) {
    const auto begin = at;
    at += tensor.bytes.size();
    for (const auto& [type, name] : kTypes) {
      if (type == tensor.type)
        header[tensor.name] = {{"dtype", name}, {"shape", tensor.shape}, {"data_offsets", {begin, at}}};
    }
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // so that the numbers are aligned
  return text;
}

/// Adds what it writes to `crc`.
Result<> write_all(int fd, std::span<const std::byte> bytes, const std::string& path, std::uint32_t& crc) {
  constexpr std::size_t kCached = 1u << 20;  // write() leaves the bytes in the cache for the checksum
  for (std::size_t at = 0; at < bytes.size(); at += kCached) {
    const auto piece = bytes.subspan(at, std::min(bytes.size() - at, kCached));
    DDP_TRY(write_bytes(fd, {reinterpret_cast<const char*>(piece.data()), piece.size()}, path));
    crc = crc32_of(piece, crc);
  }
  return {};
}

struct OpenFile {
  UniqueFd fd;
  std::uint64_t left = 0;  ///< bytes that have not been read
  std::uint32_t crc = 0;   ///< of the bytes that have been read
};

Result<OpenFile> open_file(const std::string& path) {
  // Opening a pipe must not block before the pipe is refused.
  OpenFile file{UniqueFd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK))};
  if (!file.fd) return system_error(errno, "open " + path);
  struct stat status {};
  if (::fstat(file.fd.get(), &status) != 0) return system_error(errno, "stat " + path);
  if (!S_ISREG(status.st_mode)) return usage_error(path, ": not a regular file");
  file.left = static_cast<std::uint64_t>(status.st_size);
  if (file.left > kMaxFile) return usage_error(path, ": is larger than 1 TiB");
  return file;
}

/// Reads the next `size` bytes, which the file must have.
Result<std::vector<std::byte>> read_bytes(OpenFile& file, std::size_t size, const std::string& path) {
  std::vector<std::byte> bytes(size);
  for (std::size_t at = 0; at < size;) {
    const ssize_t got = ::read(file.fd.get(), bytes.data() + at, size - at);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return system_error(errno, "read " + path);
    if (got == 0) return usage_error(path, ": became shorter while it was read");
    at += static_cast<std::size_t>(got);
  }
  file.left -= size;
  file.crc = crc32_of(bytes, file.crc);
  return bytes;
}

/// Parses one entry of the header, for a file with `size` bytes of numbers. Returns an error text, or an
/// empty one.
std::string read_entry(const nlohmann::json& entry, std::size_t size, Safetensors::Tensor& tensor) {
  if (!entry.contains("shape") || !entry.contains("data_offsets")) return "is not a tensor";
  const auto& shape = entry["shape"];
  const auto& offsets = entry["data_offsets"];
  if (!shape.is_array() || !offsets.is_array() || offsets.size() != 2 || !offsets[0].is_number_unsigned() ||
      !offsets[1].is_number_unsigned()) {
    return "has no valid shape and data_offsets";
  }
  std::uint64_t count = 1;
  for (const auto& side : shape) {
    if (!side.is_number_unsigned()) return "has a shape that is not a list of numbers";
    const std::uint64_t length = side.get<std::uint64_t>();
    // The limit also keeps the count, times the size of a number, within 64 bits.
    if (length != 0 && count > kMaxFile / length) return "is larger than the file";
    count *= length;
    tensor.shape.push_back(static_cast<std::int64_t>(length));
  }
  const std::uint64_t begin = offsets[0].get<std::uint64_t>();
  const std::uint64_t end = offsets[1].get<std::uint64_t>();
  if (begin > end || end > size) return "lies outside the file; is the file truncated?";
  if (end - begin != count * size_of(tensor.type)) return "has a shape that does not fit its bytes";
  tensor.begin = static_cast<std::size_t>(begin);
  tensor.end = static_cast<std::size_t>(end);
  return "";
}

}  // namespace

std::size_t size_of(TensorType type) {
  return type == TensorType::kF32 ? 4 : 8;
}

Result<std::uint32_t> write_file(const std::string& path,
                                 std::span<const std::span<const std::byte>> pieces) {
  const UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (!fd) return system_error(errno, "create " + path);
  const auto write = [&]() -> Result<std::uint32_t> {
    std::size_t size = 0;
    for (const auto& piece : pieces)
      size += piece.size();
    const int failed = ::posix_fallocate(fd.get(), 0, static_cast<off_t>(size));
    // Some file systems cannot reserve space; a full disk then shows while writing.
    if (failed != 0 && failed != EOPNOTSUPP && failed != EINVAL) return system_error(failed, "write " + path);
    std::uint32_t crc = 0;
    for (const auto& piece : pieces)
      DDP_TRY(write_all(fd.get(), piece, path, crc));
    if (::fsync(fd.get()) != 0) return system_error(errno, "fsync " + path);
    return crc;
  };
  auto done = write();
  if (!done) ::unlink(path.c_str());
  return done;
}

Result<std::uint32_t> write_safetensors(const std::string& path, std::span<const TensorView> tensors,
                                        const std::map<std::string, std::string>& metadata) {
  const std::string header = header_of(tensors, metadata);
  std::uint64_t length = header.size();
  std::vector<std::span<const std::byte>> pieces{bytes_of(length), std::as_bytes(std::span(header))};
  for (const TensorView& tensor : tensors)
    pieces.push_back(tensor.bytes);
  return write_file(path, pieces);
}

Result<Safetensors> Safetensors::read(const std::string& path, const CheckHeader& check) {
  auto open = DDP_TRY(open_file(path));
  const auto wrong = [&path](const auto&... what) { return usage_error(path, ": ", what...); };
  if (open.left < kLengthBytes) return wrong("not a safetensors file: shorter than 8 bytes");
  const auto size = DDP_TRY(read_bytes(open, kLengthBytes, path));
  std::uint64_t length = 0;
  std::memcpy(&length, size.data(), sizeof length);
  if (length > open.left) return wrong("not a safetensors file: its header would be longer than the file");
  if (length > kMaxHeader) return wrong("its header has ", length, " bytes, and train reads at most 4 MiB");
  const auto text = DDP_TRY(read_bytes(open, static_cast<std::size_t>(length), path));

  Safetensors file;
  file.path_ = path;
  const std::size_t numbers = static_cast<std::size_t>(open.left);
  if (const std::string problem = file.read_header(text, numbers); !problem.empty()) return wrong(problem);
  DDP_TRY(check(file));
  file.bytes_ = DDP_TRY(read_bytes(open, numbers, path));
  file.crc_ = open.crc;
  return file;
}

std::string Safetensors::first_not_finite() const {
  const auto finite = [&]<class T>(const Tensor& tensor, T value) {
    for (std::size_t at = tensor.begin; at < tensor.end; at += sizeof value) {
      std::memcpy(&value, bytes_.data() + at, sizeof value);
      if (!std::isfinite(value)) return false;
    }
    return true;
  };
  for (const auto& [name, tensor] : tensors_) {
    if (tensor.type == TensorType::kF32 && !finite(tensor, float{})) return name;
    if (tensor.type == TensorType::kF64 && !finite(tensor, double{})) return name;
  }
  return "";
}

std::string Safetensors::read_header(std::span<const std::byte> bytes, std::size_t numbers) {
  const char* text = reinterpret_cast<const char*>(bytes.data());
  const auto header = nlohmann::json::parse(text, text + bytes.size(), nullptr, false);
  if (!header.is_object()) return "not a safetensors file: its header is not a JSON object";
  std::map<std::size_t, std::size_t> places;  // end by begin
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") {
      if (!entry.is_object()) return "__metadata__ is not an object";
      for (const auto& [key, value] : entry.items()) {
        if (value.is_string()) metadata_[key] = value.get<std::string>();
      }
      continue;
    }
    const auto kind = entry.is_object() ? entry.value("dtype", nlohmann::json()) : nlohmann::json();
    const auto type = type_of(kind.is_string() ? kind.get<std::string>() : "");
    if (!type) return "tensor " + name + " is not of type F32, F64 or I64";
    Tensor tensor;
    tensor.type = *type;
    const std::string problem = read_entry(entry, numbers, tensor);
    if (!problem.empty()) return "tensor " + name + " " + problem;
    const bool empty = tensor.begin == tensor.end;
    if (!empty && !places.emplace(tensor.begin, tensor.end).second) return "has tensors that overlap";
    tensors_[name] = std::move(tensor);
  }
  // The format permits no holes: bytes of no tensor could hide other contents.
  std::size_t at = 0;
  for (const auto& [begin, end] : places) {
    if (begin < at) return "has tensors that overlap";
    if (begin > at) return "has bytes that belong to no tensor";
    at = end;
  }
  return at < numbers ? "is longer than its tensors" : "";
}

template <class T>
bool Safetensors::copy(const std::string& name, std::size_t first, std::span<T> to) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end() || first > count(found->second) || to.size() > count(found->second) - first)
    return false;
  const Tensor& tensor = found->second;
  const std::byte* from = bytes_.data() + tensor.begin + first * size_of(tensor.type);
  const auto convert = [&]<class From>(From value) {
    for (T& element : to) {
      std::memcpy(&value, from, sizeof value);
      element = static_cast<T>(value);
      from += sizeof value;
    }
  };
  switch (tensor.type) {
    case TensorType::kF32: convert(float{}); break;
    case TensorType::kF64: convert(double{}); break;
    case TensorType::kI64: convert(std::int64_t{}); break;
  }
  return true;
}

template bool Safetensors::copy<float>(const std::string&, std::size_t, std::span<float>) const;
template bool Safetensors::copy<double>(const std::string&, std::size_t, std::span<double>) const;
template bool Safetensors::copy<std::int64_t>(const std::string&, std::size_t, std::span<std::int64_t>) const;

namespace {

/// Calls body(place in PyTorch's order, place in the model's order) for every number of the tensor.
template <class Body>
void for_each_number(const TensorInfo& tensor, Body body) {
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
  for_each_number(tensor, [&](std::size_t there, std::size_t here) { torch[there] = ours[here]; });
}

template <class T>
void from_torch_order(const TensorInfo& tensor, std::span<const T> torch, std::span<T> ours) {
  for_each_number(tensor, [&](std::size_t there, std::size_t here) { ours[here] = torch[there]; });
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
  DDP_TRY(write_safetensors(unfinished, state.tensors(), {{"format", "pt"}, {"model", model.name()}}));
  // The bytes are on the disk before the name, so that a crash leaves the old file or the whole new one.
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
    return usage_error("--export ", path, ": exists and is not a regular file");
  return check_output_path("--export", path + kUnfinishedSuffix);
}

template <class T>
Result<> check_model(const Safetensors& file, const Model<T>& model) {
  const std::string& name_of_model = model.name();
  const auto wrong = [&file](const auto&... what) { return usage_error(file.path(), ": tensor ", what...); };
  std::vector<TensorInfo> expected = model.parameter_tensors();
  std::ranges::copy(model.running_tensors(), std::back_inserter(expected));
  for (const std::string& name : model.counter_names())
    if (file.tensors().contains(name)) expected.push_back({.name = name});
  for (const TensorInfo& tensor : expected) {
    const auto found = file.tensors().find(tensor.name);
    if (found == file.tensors().end())
      return wrong(tensor.name, " is missing; check that the file is of --model ", name_of_model);
    if (found->second.shape != tensor.shape) {
      return wrong(tensor.name, " is ", shape_text(found->second.shape), "; the ", name_of_model, " takes ",
                   shape_text(tensor.shape));
    }
  }
  for (const auto& [name, tensor] : file.tensors()) {
    if (std::ranges::find(expected, name, &TensorInfo::name) == expected.end())
      return wrong(name, " is unknown to the ", name_of_model);
  }
  return {};
}

template <class T>
Result<> import_model(const std::string& path, Model<T>& model) {
  const auto check = [&model](const Safetensors& header) { return check_model<T>(header, model); };
  const auto file = DDP_TRY(Safetensors::read(path, check));
  if (const std::string name = file.first_not_finite(); !name.empty())
    return usage_error(path, ": tensor ", name, " has a number that is not finite");
  import_model<T>(file, model);
  return {};
}

template <class T>
void import_model(const Safetensors& file, Model<T>& model) {
  const auto load_tensors = [&](const std::vector<TensorInfo>& tensors, std::span<T> to) {
    for (const TensorInfo& tensor : tensors) {
      std::vector<T> numbers(tensor.size);
      file.copy<T>(tensor.name, 0, numbers);
      from_torch_order<T>(tensor, numbers, to.subspan(tensor.offset, tensor.size));
    }
  };
  load_tensors(model.parameter_tensors(), model.parameters());
  load_tensors(model.running_tensors(), model.running_statistics());
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
