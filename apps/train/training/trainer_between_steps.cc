// Collective work of the ranks between steps: averages, the test, hashes.

#include <algorithm>
#include <numeric>
#include <string>

#include "apps/train/collectives/communicator.h"
#include "apps/train/data/hash.h"
#include "apps/train/kernels/cpu/weight_update.h"
#include "apps/train/training/trainer.h"

namespace ddp::train {

template <class T>
Result<> Trainer<T>::check_dropped(int limit) const {
  if (dropped_in_a_row_ < limit) return {};
  return Error{ErrorCode::kUsage, "the gradients of " + std::to_string(dropped_in_a_row_) +
                                      " steps in a row, up to step " + std::to_string(position_.step) +
                                      ", are not finite: training has diverged; try a smaller --lr"};
}

/// Averages over all ranks of the world; each rank of `over` counts `weight` times. A failed sum leaves
/// undefined values, so a rank that may rejoin restores its own.
template <class T>
Result<> Trainer<T>::average(Communicator& over, std::span<T> values, int weight) {
  if (options_.rejoin) kept_.assign(values.begin(), values.end());
  if (weight != 1) kernels::average<T>(values, static_cast<T>(weight));
  if (auto done = over.all_reduce_sum(values); !done) {
    if (options_.rejoin) std::ranges::copy(kept_, values.begin());
    return done;
  }
  kernels::average<T>(values, T(1) / static_cast<T>(communicators_.world->world_size()));
  return {};
}

template <class T>
Result<> Trainer<T>::average_nodes() {
  Communicator* between = communicators_.between;
  if (between == nullptr || between->world_size() == 1 || averaged_step_ == position_.step) return {};
  fetch();
  if (auto done = average(*between, model_.parameters(), communicators_.node->world_size()); !done)
    return of(done.error(), "the nodes' average after step " + std::to_string(position_.step));
  averaged_step_ = position_.step;
  return {};
}

template <class T>
Result<> Trainer<T>::average_running_statistics() {
  const std::span<T> running = model_.running_statistics();
  if (running.empty() || communicators_.world->world_size() == 1) return {};
  fetch();
  if (auto done = average(*communicators_.world, running, 1); !done)
    return of(done.error(), "the running statistics after step " + std::to_string(position_.step));
  return {};
}

template <class T>
Result<Accuracy> Trainer<T>::evaluate() {
  const std::size_t world = static_cast<std::size_t>(communicators_.world->world_size());
  const std::size_t rank = static_cast<std::size_t>(communicators_.world->rank());
  const std::size_t begin = data_.test.size() * rank / world;
  const std::size_t end = data_.test.size() * (rank + 1) / world;

  std::uint64_t mine[2] = {0, end - begin};
  std::vector<std::uint32_t> samples;
  for (std::size_t at = begin; at < end; at += samples.size()) {
    report_phase("test");
    if (is_revoked(communicators_.interrupt)) return revoked_error();
    samples.resize(std::min<std::size_t>(end - at, static_cast<std::size_t>(options_.batch_size)));
    std::iota(samples.begin(), samples.end(), static_cast<std::uint32_t>(at));
    const auto labels = std::span(test_labels_).first(samples.size());
    fill_batch<T>(data_.test, samples, model_.image_border(), test_images_.data(), labels);
    mine[0] += static_cast<std::uint64_t>(model_.evaluate(test_images_.data(), labels).correct);
  }
  const auto all = communicators_.world->all_gather(mine);
  if (!all) return of(all.error(), "the test results after step " + std::to_string(position_.step));
  Accuracy accuracy;
  for (std::size_t i = 0; i < all->size(); i += 2) {
    accuracy.correct += (*all)[i];
    accuracy.total += (*all)[i + 1];
  }
  return accuracy;
}

template <class T>
std::uint64_t Trainer<T>::weights_hash() {
  fetch();
  return fnv_hash(std::as_bytes(model_.running_statistics()), fnv_hash(std::as_bytes(model_.parameters())));
}

template <class T>
Result<std::vector<std::uint64_t>> Trainer<T>::gather_hashes() {
  const std::uint64_t mine[] = {weights_hash()};
  auto all = communicators_.world->all_gather(mine);
  if (!all) return of(all.error(), "the weights' hashes");
  return all;
}

// trainer.cc instantiates the class with its other members.
#define DDP_INSTANTIATE(T)                                                 \
  template Result<> Trainer<T>::check_dropped(int) const;                  \
  template Result<> Trainer<T>::average(Communicator&, std::span<T>, int); \
  template Result<> Trainer<T>::average_nodes();                           \
  template Result<> Trainer<T>::average_running_statistics();              \
  template Result<Accuracy> Trainer<T>::evaluate();                        \
  template std::uint64_t Trainer<T>::weights_hash();                       \
  template Result<std::vector<std::uint64_t>> Trainer<T>::gather_hashes();
DDP_INSTANTIATE(float)
DDP_INSTANTIATE(double)
#undef DDP_INSTANTIATE

}  // namespace ddp::train
