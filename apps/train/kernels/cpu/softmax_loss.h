#pragma once

#include <cstdint>
#include <span>

namespace ddp::train::kernels {

struct BatchScore {
  double loss_sum = 0;  ///< cross entropy, summed over the batch in order
  int correct = 0;      ///< rows whose largest logit (the first of equals) is at the label
};

/// Softmax cross entropy of logits [batch][classes]. If `gradient` is not empty, it has the size of `logits`
/// and receives the gradient of the batch's mean loss.
template <class T>
BatchScore softmax_loss(std::span<const T> logits, std::span<const std::uint8_t> labels, int classes,
                        std::span<T> gradient);

}  // namespace ddp::train::kernels
