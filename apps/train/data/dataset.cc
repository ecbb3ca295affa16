#include "apps/train/data/dataset.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <utility>

#include "apps/train/data/checksum.h"
#include "apps/train/data/idx_file.h"
#include "apps/train/data/image_size.h"

namespace ddp::train {

namespace {

constexpr std::uint64_t kMaxImages = 1'000'000;

/// Returns the plain file if it exists, else the .gz.
Result<std::string> find_file(const std::string& directory, const std::string& name) {
  const std::string plain = directory + "/" + name;
  std::error_code ignored;
  for (const std::string& path : {plain, plain + ".gz"}) {
    if (std::filesystem::exists(path, ignored)) return path;
  }
  return Error{ErrorCode::kUsage, plain +
                                      ": no such file, neither plain nor .gz; give a directory with the four "
                                      "MNIST files by --data (Debian's package dataset-fashion-mnist brings "
                                      "them), or --data synthetic"};
}

Result<Dataset> load_part(const std::string& directory, const std::string& part) {
  const auto images_path = find_file(directory, part + "-images-idx3-ubyte");
  if (!images_path) return images_path.error();
  const auto labels_path = find_file(directory, part + "-labels-idx1-ubyte");
  if (!labels_path) return labels_path.error();
  auto images = read_idx(*images_path, 3, kMaxImages * kImagePixels);
  if (!images) return images.error();
  auto labels = read_idx(*labels_path, 1, kMaxImages);
  if (!labels) return labels.error();

  const auto wrong = [](const std::string& path, const std::string& what) {
    return Error{ErrorCode::kUsage, path + ": " + what};
  };
  if (images->sizes[1] != kImageSide || images->sizes[2] != kImageSide) {
    return wrong(*images_path, "images of " + std::to_string(images->sizes[1]) + " x " +
                                   std::to_string(images->sizes[2]) + " pixels; the model takes 28 x 28");
  }
  if (images->sizes[0] == 0) return wrong(*images_path, "holds no image");
  if (images->sizes[0] != labels->sizes[0]) {
    return wrong(*labels_path, std::to_string(labels->sizes[0]) + " labels for " +
                                   std::to_string(images->sizes[0]) + " images");
  }
  const auto bad =
      std::find_if(labels->bytes.begin(), labels->bytes.end(), [](auto l) { return l >= kClasses; });
  if (bad != labels->bytes.end()) {
    return wrong(*labels_path, "label " + std::to_string(*bad) + " of image " +
                                   std::to_string(bad - labels->bytes.begin()) + " is not 0 to 9");
  }
  return Dataset::of(std::move(images->bytes), std::move(labels->bytes));
}

Result<DataSplit> load_files(const std::string& directory, std::size_t limit) {
  auto training = load_part(directory, "train");
  if (!training) return training.error();
  auto test = load_part(directory, "t10k");
  if (!test) return test.error();
  if (limit != 0 && limit < training->size()) {
    training->images = training->images.first(limit * kImagePixels);
    training->labels = training->labels.first(limit);
  }
  return DataSplit{std::move(*training), std::move(*test)};
}

}  // namespace

Dataset Dataset::of(std::vector<std::uint8_t> images, std::vector<std::uint8_t> labels) {
  struct Memory {
    std::vector<std::uint8_t> images, labels;
  };
  auto memory = std::make_shared<const Memory>(std::move(images), std::move(labels));
  Dataset data;
  data.images = memory->images;
  data.labels = memory->labels;
  data.memory = std::move(memory);
  return data;
}

bool has_data_files(const std::string& directory) {
  for (const char* name : {"train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte",
                           "t10k-labels-idx1-ubyte"}) {
    if (find_file(directory, name)) return true;
  }
  return false;
}

Result<DataSplit> load_data(const std::string& where, std::size_t limit) {
  auto data = where == "synthetic" ? Result<DataSplit>(synthetic_data(limit)) : load_files(where, limit);
  if (!data) return data;
  const auto of = [](std::span<const std::uint8_t> bytes) { return crc32_of(std::as_bytes(bytes)); };
  data->checksums = {of(data->training.images), of(data->training.labels), of(data->test.images),
                     of(data->test.labels)};
  return data;
}

template <class T>
void fill_batch(const Dataset& data, std::span<const std::uint32_t> samples, int border, T* images,
                std::span<std::uint8_t> labels) {
  const int side = kImageSide + 2 * border;
  std::fill_n(images, samples.size() * static_cast<std::size_t>(side) * side, T{});
  std::array<std::uint8_t, kImagePixels> drawn;
  for (std::size_t n = 0; n < samples.size(); ++n) {
    const std::uint8_t* image = drawn.data();
    if (data.draw) {
      labels[n] = data.draw(samples[n], drawn.data());
    } else {
      labels[n] = data.labels[samples[n]];
      image = data.images.data() + std::size_t{samples[n]} * kImagePixels;
    }
    T* to = images + n * static_cast<std::size_t>(side) * side + border * side + border;
    for (int y = 0; y < kImageSide; ++y) {
      for (int x = 0; x < kImageSide; ++x)
        to[y * side + x] = static_cast<T>(image[y * kImageSide + x]) / T(255);
    }
  }
}

template void fill_batch<float>(const Dataset&, std::span<const std::uint32_t>, int, float*,
                                std::span<std::uint8_t>);
template void fill_batch<double>(const Dataset&, std::span<const std::uint32_t>, int, double*,
                                 std::span<std::uint8_t>);

}  // namespace ddp::train
