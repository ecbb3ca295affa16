#pragma once

namespace ddp::train {

// Sizes of the images of MNIST and Fashion-MNIST, and of the border that a 5 x 5 convolution needs.
inline constexpr int kImageSide = 28;
inline constexpr int kImagePixels = kImageSide * kImageSide;
inline constexpr int kClasses = 10;
inline constexpr int kImageBorder = 2;
inline constexpr int kPaddedSide = kImageSide + 2 * kImageBorder;
inline constexpr int kPaddedPixels = kPaddedSide * kPaddedSide;

}  // namespace ddp::train
