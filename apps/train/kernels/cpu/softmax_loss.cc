#include "apps/train/kernels/cpu/softmax_loss.h"

#include <cmath>
#include <cstddef>

namespace ddp::train::kernels {

template <class T>
BatchScore softmax_loss(std::span<const T> logits, std::span<const std::uint8_t> labels, int classes,
                        std::span<T> gradient) {
  BatchScore score;
  const std::size_t width = static_cast<std::size_t>(classes);
  const T share = T(1) / static_cast<T>(labels.size());
  for (std::size_t n = 0; n < labels.size(); ++n) {
    const auto row = logits.subspan(n * width, width);
    std::size_t best = 0;
    for (std::size_t c = 1; c < width; ++c) {
      if (row[c] > row[best]) best = c;
    }
    T sum = 0;
    for (std::size_t c = 0; c < width; ++c)
      sum += std::exp(row[c] - row[best]);
    const T log_sum = std::log(sum);
    score.loss_sum += static_cast<double>(log_sum - (row[labels[n]] - row[best]));
    if (best == labels[n]) ++score.correct;
    if (gradient.empty()) continue;
    for (std::size_t c = 0; c < width; ++c) {
      const T probability = std::exp(row[c] - row[best]) / sum;
      gradient[n * width + c] = (probability - (c == labels[n] ? T(1) : T(0))) * share;
    }
  }
  return score;
}

template BatchScore softmax_loss<float>(std::span<const float>, std::span<const std::uint8_t>, int,
                                        std::span<float>);
template BatchScore softmax_loss<double>(std::span<const double>, std::span<const std::uint8_t>, int,
                                         std::span<double>);

}  // namespace ddp::train::kernels
