#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "apps/train/collectives/communicator.h"
#include "apps/train/gpu/device_model.h"
#include "apps/train/kernels/cpu/aligned_buffer.h"
#include "apps/train/kernels/cpu/kernel_table.h"
#include "apps/train/model/model.h"
#include "apps/train/options/options.h"
#include "base/result.h"

namespace ddp::train {

/// One step's gradient over micro-batches and ranks. Buckets are sent as soon as backward has completed them,
/// in the last micro-batch only. The next steps are: mean, test for nan and infinity, clip by value, clip by
/// norm. The test needs no message unless --zero: a nan of one rank is in every rank's sum.
///
///   for each micro-batch: model.forward(); model.backward(…, [](begin) { sync.ready(begin); });
///                         sync.end_of_micro_batch();
///   sync.finish();
template <class T>
class GradientSync {
 public:
  /// All arguments must outlive this object.
  GradientSync(const TrainOptions& options, Model<T>& model, Communicator& communicator)
      : options_(options),
        model_(model),
        communicator_(communicator),
        buckets_(plan_buckets(model.parameter_tensors(), 1, sizeof(T), bytes(options.first_bucket_mb),
                              bytes(options.bucket_cap_mb))) {}

  void begin_step(int micro_batches) {
    micro_batches_ = micro_batches;
    micro_batch_ = 0;
    next_bucket_ = 0;
    started_.clear();
    failed_ = Result<>();
  }

  /// The gradients from `begin` on are complete. finish() returns errors of this call.
  void ready(std::size_t begin) {
    // With --sync-bn, backward itself communicates, and no other message may be sent while sums are under
    // way.
    if (options_.sync_bn || options_.zero || micro_batch_ + 1 < micro_batches_) return;
    start_buckets(begin);
    if (failed_) failed_ = communicator_.progress();
  }

  void end_of_micro_batch() {
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

  /// Waits for all sums. The model's gradients() are then ready for the update: all of them, or with
  /// --zero only own_part().
  Result<ReducedGradient> finish() {
    if (!failed_) return failed_.error();
    return options_.zero ? finish_sharded() : finish_whole();
  }

  /// Range of the padded flat vectors, in elements; everything without --zero.
  GradientBucket own_part() const {
    if (!options_.zero) return {0, model_.parameter_count()};
    const std::size_t world = static_cast<std::size_t>(communicator_.world_size());
    const std::size_t size = (model_.parameter_count() + world - 1) / world;
    return {size * static_cast<std::size_t>(communicator_.rank()),
            size * static_cast<std::size_t>(communicator_.rank() + 1)};
  }

  /// Returns the gradients of own_part() after finish().
  std::span<const T> own_gradients() { return own_gradients_; }
  const std::vector<GradientBucket>& buckets() const { return buckets_; }

 private:
  static std::size_t bytes(double mib) { return static_cast<std::size_t>(mib * 1024 * 1024); }
  void start_buckets(std::size_t begin) {
    for (; failed_ && next_bucket_ < buckets_.size() && buckets_[next_bucket_].begin >= begin;
         ++next_bucket_) {
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

  void add_earlier(const GradientBucket& range) {
    if (micro_batches_ == 1) return;
    const std::size_t size = range.end - range.begin;
    kernels::add<T>(model_.gradients_and_loss().subspan(range.begin, size),
                    earlier_.span().subspan(range.begin, size));
  }

  Result<ReducedGradient> finish_whole() {
    start_buckets(0);  // buckets that were not sent during backward
    if (!failed_) return failed_.error();
    for (const auto handle : started_)
      DDP_TRY(communicator_.wait(handle));
    const T share = T(1) / static_cast<T>(communicator_.world_size() * micro_batches_);
    ReducedGradient reduced;
    reduced.finite = kernels::average<T>(model_.gradients_and_loss(), share);
    reduced.loss = static_cast<double>(model_.gradients_and_loss().back());
    if (!reduced.finite) return reduced;
    const auto gradients = model_.gradients();
    own_gradients_ = gradients;
    if (options_.clip_value > 0) kernels::clip_value<T>(gradients, static_cast<T>(options_.clip_value));
    if (options_.clip_norm > 0) clip_norm(gradients, reduced, kernels::squared_norm<T>(gradients));
    return reduced;
  }

  Result<ReducedGradient> finish_sharded() {
    const std::size_t world = static_cast<std::size_t>(communicator_.world_size());
    add_earlier({0, model_.gradients_and_loss().size()});
    const double loss = static_cast<double>(model_.gradients_and_loss().back());
    const std::span<T> padded = model_.padded_gradients(world);
    DDP_TRY(communicator_.reduce_scatter_sum(padded));

    const GradientBucket part = own_part();
    const auto mine = padded.subspan(part.begin, part.end - part.begin);
    own_gradients_ = mine;
    const bool finite =
        kernels::average<T>(mine, T(1) / static_cast<T>(communicator_.world_size() * micro_batches_));
    if (options_.clip_value > 0) kernels::clip_value<T>(mine, static_cast<T>(options_.clip_value));
    const double squared = options_.clip_norm > 0 ? kernels::squared_norm<T>(mine) : 0;
    // No rank has seen the whole sum here, so the ranks exchange what decides.
    struct PartOfRank {
      double loss, squared;
      std::uint64_t finite;
    };
    const auto all = DDP_TRY(gather_values(communicator_, PartOfRank{loss, squared, finite}));
    ReducedGradient reduced;
    double total = 0;
    for (const PartOfRank& one : all) {
      reduced.loss += one.loss;
      total += one.squared;
      reduced.finite = reduced.finite && one.finite != 0;
    }
    reduced.loss /= static_cast<double>(communicator_.world_size()) * micro_batches_;
    reduced.finite = reduced.finite && std::isfinite(reduced.loss);
    if (reduced.finite && options_.clip_norm > 0) clip_norm(mine, reduced, total);
    return reduced;
  }

  void clip_norm(std::span<T> gradients, ReducedGradient& reduced, double squared) const {
    reduced.norm = std::sqrt(squared);
    // The formula of torch.nn.utils.clip_grad_norm_.
    const double factor = options_.clip_norm / (reduced.norm + 1e-6);
    if (factor < 1) kernels::average<T>(gradients, static_cast<T>(factor));
  }

  const TrainOptions& options_;
  Model<T>& model_;
  Communicator& communicator_;
  std::vector<GradientBucket> buckets_;
  std::size_t next_bucket_ = 0;
  std::vector<Communicator::Handle> started_;
  Result<> failed_;
  int micro_batches_ = 1, micro_batch_ = 0;
  std::span<const T> own_gradients_;
  AlignedBuffer<T> earlier_;  ///< sum over the micro-batches before this one
};

}  // namespace ddp::train
