#include "apps/train/training/gradient_sync.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "apps/train/kernels/cpu/weight_update.h"

namespace ddp::train {

template <class T>
GradientSync<T>::GradientSync(const GradientSyncSettings& settings, Model<T>& model,
                              Communicator& communicator)
    : settings_(settings),
      model_(model),
      communicator_(communicator),
      buckets_(plan_buckets(model.parameter_tensors(), 1, sizeof(T), settings.first_bucket_bytes,
                            settings.bucket_bytes)) {}

template <class T>
void GradientSync<T>::begin_step(int micro_batches) {
  micro_batches_ = micro_batches;
  micro_batch_ = 0;
  next_bucket_ = 0;
  started_.clear();
  failed_ = Result<>();
}

template <class T>
void GradientSync<T>::add_earlier(const GradientBucket& range) {
  if (micro_batches_ == 1) return;
  const std::size_t size = range.end - range.begin;
  kernels::add<T>(model_.gradients_and_loss().subspan(range.begin, size),
                  earlier_.span().subspan(range.begin, size));
}

template <class T>
void GradientSync<T>::ready(std::size_t begin) {
  if (!settings_.overlap || settings_.sharded || micro_batch_ + 1 < micro_batches_) return;
  start_buckets(begin);
  if (failed_) failed_ = communicator_.progress();
}

template <class T>
void GradientSync<T>::start_buckets(std::size_t begin) {
  for (; failed_ && next_bucket_ < buckets_.size() && buckets_[next_bucket_].begin >= begin; ++next_bucket_) {
    const GradientBucket& bucket = buckets_[next_bucket_];
    add_earlier(bucket);
    const auto handle = communicator_.start_all_reduce(
        model_.gradients_and_loss().subspan(bucket.begin, bucket.end - bucket.begin));
    if (handle) {
      started_.push_back(*handle);
    } else {
      failed_ = handle.error();
    }
  }
}

template <class T>
void GradientSync<T>::end_of_micro_batch() {
  ++micro_batch_;
  if (micro_batch_ == micro_batches_) return;
  const auto gradients = model_.gradients_and_loss();
  if (earlier_.size() == 0) earlier_ = AlignedBuffer<T>(gradients.size());
  if (micro_batch_ == 1) {
    std::copy(gradients.begin(), gradients.end(), earlier_.data());
  } else {
    kernels::add<T>(earlier_.span(), gradients);
  }
}

template <class T>
Result<ReducedGradient> GradientSync<T>::finish() {
  if (!failed_) return failed_.error();
  return settings_.sharded ? finish_sharded() : finish_whole();
}

template <class T>
void GradientSync<T>::clip_norm(std::span<T> gradients, ReducedGradient& reduced, double squared) const {
  reduced.norm = std::sqrt(squared);
  // The formula of torch.nn.utils.clip_grad_norm_.
  const double factor = settings_.clip_norm / (reduced.norm + 1e-6);
  if (factor < 1) kernels::average<T>(gradients, static_cast<T>(factor));
}

template <class T>
Result<ReducedGradient> GradientSync<T>::finish_whole() {
  start_buckets(0);  // buckets that were not sent during backward
  if (!failed_) return failed_.error();
  for (const auto handle : started_) {
    if (auto done = communicator_.wait(handle); !done) return done.error();
  }
  const T share = T(1) / static_cast<T>(communicator_.world_size() * micro_batches_);
  ReducedGradient reduced;
  reduced.finite = kernels::average<T>(model_.gradients_and_loss(), share);
  reduced.loss = static_cast<double>(model_.gradients_and_loss().back());
  if (!reduced.finite) return reduced;
  const auto gradients = model_.gradients();
  own_gradients_ = gradients;
  if (settings_.clip_value > 0) kernels::clip_value<T>(gradients, static_cast<T>(settings_.clip_value));
  if (settings_.clip_norm > 0) clip_norm(gradients, reduced, kernels::squared_norm<T>(gradients));
  return reduced;
}

template <class T>
GradientBucket GradientSync<T>::own_part() const {
  if (!settings_.sharded) return {0, model_.parameter_count()};
  const std::size_t world = static_cast<std::size_t>(communicator_.world_size());
  const std::size_t size = (model_.parameter_count() + world - 1) / world;
  return {size * static_cast<std::size_t>(communicator_.rank()),
          size * static_cast<std::size_t>(communicator_.rank() + 1)};
}

template <class T>
Result<ReducedGradient> GradientSync<T>::finish_sharded() {
  const std::size_t world = static_cast<std::size_t>(communicator_.world_size());
  add_earlier({0, model_.gradients_and_loss().size()});
  const double loss = static_cast<double>(model_.gradients_and_loss().back());
  const std::span<T> padded = model_.padded_gradients(world);
  if (auto done = communicator_.reduce_scatter_sum(padded); !done) return done.error();

  const GradientBucket part = own_part();
  const auto mine = padded.subspan(part.begin, part.end - part.begin);
  own_gradients_ = mine;
  const bool finite =
      kernels::average<T>(mine, T(1) / static_cast<T>(communicator_.world_size() * micro_batches_));
  if (settings_.clip_value > 0) kernels::clip_value<T>(mine, static_cast<T>(settings_.clip_value));
  const double squared = settings_.clip_norm > 0 ? kernels::squared_norm<T>(mine) : 0;
  // No rank has seen the whole sum here, so the ranks exchange what decides.
  const std::uint64_t words[] = {std::bit_cast<std::uint64_t>(loss), std::bit_cast<std::uint64_t>(squared),
                                 finite ? 1u : 0u};
  const auto all = communicator_.all_gather(words);
  if (!all) return all.error();
  ReducedGradient reduced;
  double total = 0;
  for (std::size_t i = 0; i < all->size(); i += 3) {
    reduced.loss += std::bit_cast<double>((*all)[i]);
    total += std::bit_cast<double>((*all)[i + 1]);
    reduced.finite = reduced.finite && (*all)[i + 2] != 0;
  }
  reduced.loss /= static_cast<double>(communicator_.world_size()) * micro_batches_;
  reduced.finite = reduced.finite && std::isfinite(reduced.loss);
  if (reduced.finite && settings_.clip_norm > 0) clip_norm(mine, reduced, total);
  return reduced;
}

template class GradientSync<float>;
template class GradientSync<double>;

}  // namespace ddp::train
