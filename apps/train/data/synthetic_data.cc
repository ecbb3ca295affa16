#include <algorithm>
#include <array>
#include <utility>

#include "apps/train/data/dataset.h"
#include "apps/train/data/image_size.h"
#include "apps/train/data/random.h"

namespace ddp::train {

namespace {

constexpr std::uint64_t kSeed = 20'170'825;  // seed of the data set: --seed changes training, not the data
constexpr std::size_t kTrainingImages = 60'000;
constexpr std::size_t kTestImages = 10'000;
constexpr std::size_t kFewestTestImages = 200;
constexpr std::size_t kMaxStored = 60'000;
constexpr int kCells = 7;  // a prototype is 7 x 7 random cells, drawn as 4 x 4 pixels each
constexpr int kCellSide = kImageSide / kCells;
constexpr int kMaxShift = 2;

/// Streams of the generator. Test images must not repeat training images.
enum GeneratorStream : std::uint64_t { kPrototype = 1, kTrainingStream = 2, kTestStream = 3 };

using Prototype = std::array<std::uint8_t, kImagePixels>;

std::array<Prototype, kClasses> make_prototypes() {
  std::array<Prototype, kClasses> prototypes;
  for (int label = 0; label < kClasses; ++label) {
    for (int pixel = 0; pixel < kImagePixels; ++pixel) {
      const int cell = pixel / kImageSide / kCellSide * kCells + pixel % kImageSide / kCellSide;
      prototypes[label][pixel] =
          random_bits(kSeed, kPrototype, label * kCells * kCells + cell) & 1 ? 200 : 30;
    }
  }
  return prototypes;
}

/// Draws pixel (x, y) from the prototype, shifted by up to two pixels, plus noise of ± 128, clamped to a
/// byte.
void draw(const Prototype& prototype, std::uint64_t bits, std::uint8_t* image) {
  const int shift_x = static_cast<int>(bits >> 8 & 0xff) % (2 * kMaxShift + 1) - kMaxShift;
  const int shift_y = static_cast<int>(bits >> 16 & 0xff) % (2 * kMaxShift + 1) - kMaxShift;
  std::uint64_t noise = 0;
  for (int pixel = 0; pixel < kImagePixels; ++pixel) {
    if (pixel % 8 == 0) noise = random_bits(bits, 0, pixel / 8);
    const int x = std::clamp(pixel % kImageSide + shift_x, 0, kImageSide - 1);
    const int y = std::clamp(pixel / kImageSide + shift_y, 0, kImageSide - 1);
    const int value = prototype[y * kImageSide + x] + static_cast<int>(noise & 0xff) - 128;
    image[pixel] = static_cast<std::uint8_t>(std::clamp(value, 0, 255));
    noise >>= 8;
  }
}

DrawImage drawer(const std::array<Prototype, kClasses>& prototypes, std::uint64_t stream) {
  return [prototypes, stream](std::size_t number, std::uint8_t* image) {
    const std::uint64_t bits = random_bits(kSeed, stream, number);
    const std::uint8_t label = static_cast<std::uint8_t>((bits >> 32) % kClasses);
    draw(prototypes[label], bits, image);
    return label;
  };
}

Dataset make_part(DrawImage draw_image, std::size_t count) {
  if (count > kMaxStored) return {{}, {}, std::move(draw_image), count, nullptr};
  std::vector<std::uint8_t> images(count * kImagePixels);
  std::vector<std::uint8_t> labels(count);
  for (std::size_t i = 0; i < count; ++i)
    labels[i] = draw_image(i, images.data() + i * kImagePixels);
  return Dataset::of(std::move(images), std::move(labels));
}

}  // namespace

DataSplit synthetic_data(std::size_t limit) {
  const auto prototypes = make_prototypes();
  const std::size_t training = limit == 0 ? kTrainingImages : limit;
  return {make_part(drawer(prototypes, kTrainingStream), training),
          make_part(drawer(prototypes, kTestStream),
                    std::min(kTestImages, std::max<std::size_t>(training, kFewestTestImages)))};
}

}  // namespace ddp::train
