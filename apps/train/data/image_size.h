#pragma once

namespace ddp::train {

// The pictures of MNIST and Fashion-MNIST, and the border that a 5 x 5 convolution wants.
inline constexpr int kImageSide = 28;
inline constexpr int kImagePixels = kImageSide * kImageSide;
inline constexpr int kClasses = 10;
inline constexpr int kImageBorder = 2;
inline constexpr int kPaddedSide = kImageSide + 2 * kImageBorder;
inline constexpr int kPaddedPixels = kPaddedSide * kPaddedSide;

}  // namespace ddp::train
