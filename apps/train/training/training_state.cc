#include "apps/train/training/training_state.h"

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "apps/train/checkpoint/checkpoint.h"
#include "apps/train/data/hash.h"

namespace ddp::train {

namespace {

/// The first message of `from`.
struct StateHeader {
  std::uint64_t parameters = 0, running = 0, vectors = 0;  ///< sizes; vectors: number of optimizer vectors
  std::uint64_t hash = 0;                                  ///< hash of all numbers that follow
  std::int64_t optimizer_steps = 0, batches = 0;
  TrainingPosition position;
  std::int64_t dropped_in_a_row = 0;
  TrainingMarks marks;
};
static_assert(std::is_trivially_copyable_v<StateHeader>);

/// The state that each rank reports to hold.
struct RetainedState {
  std::uint64_t any = 0, step = 0, hash = 0;
  static constexpr std::size_t kWords = 3;
};

/// Hashes weights and optimizer: they are equal on ranks of the same step.
template <class T>
std::uint64_t hash_of(Trainer<T>& trainer) {
  std::uint64_t hash = fnv_hash(std::as_bytes(trainer.model().parameters()));
  for (const auto& one : trainer.optimizer().state())
    hash = fnv_hash(std::as_bytes(one.values), hash);
  return hash;
}

/// Returns running statistics first, then weights and optimizer.
template <class T>
std::vector<T> numbers_of(Trainer<T>& trainer) {
  std::vector<T> numbers;
  const auto add = [&numbers](std::span<const T> values) {
    numbers.insert(numbers.end(), values.begin(), values.end());
  };
  add(trainer.model().running_statistics());
  add(trainer.model().parameters());
  for (const auto& one : trainer.optimizer().state())
    add(one.values);
  return numbers;
}

template <class T>
void take_numbers(std::span<const T> numbers, bool with_running, Trainer<T>& trainer) {
  const auto take = [&numbers](std::span<T> into, bool wanted) {
    if (wanted) std::ranges::copy(numbers.first(into.size()), into.begin());
    numbers = numbers.subspan(into.size());
  };
  take(trainer.model().running_statistics(), with_running);
  take(trainer.model().parameters(), true);
  for (const auto& one : trainer.optimizer().state())
    take(one.values, true);
}

template <class T>
StateHeader head_of(Trainer<T>& trainer, const TrainingMarks& marks) {
  StateHeader head;
  head.parameters = trainer.model().parameter_count();
  head.running = trainer.model().running_statistics().size();
  head.vectors = trainer.optimizer().state().size();
  head.optimizer_steps = trainer.optimizer().steps();
  head.batches = trainer.model().batches();
  head.position = trainer.position();
  head.dropped_in_a_row = trainer.dropped_in_a_row();
  head.marks = marks;
  return head;
}

RetainedState held_by(const std::vector<std::uint64_t>& words, int rank) {
  const std::uint64_t* at = words.data() + RetainedState::kWords * static_cast<std::size_t>(rank);
  return {at[0], at[1], at[2]};
}

/// An error only without --sync-every-inter: with it nodes may differ, and `from` makes them equal.
Error differing(int rank, int from, std::uint64_t step) {
  return {ErrorCode::kInternal, "weights differ after step " + std::to_string(step) + ": those of rank " +
                                    std::to_string(rank) + " are not those of rank " + std::to_string(from)};
}

/// Converts the position of `from`'s world to the present world.
TrainingPosition position_here(const TrainOptions& options, const StateHeader& head, std::uint64_t samples,
                               int world) {
  CheckpointState state;
  state.world_size = head.marks.world_size;
  state.batch_size = options.batch_size;
  state.accumulate = options.accumulate;
  state.samples = samples;
  state.position = head.position;
  return go_on(state, world, options.batch_size, options.accumulate);
}

}  // namespace

template <class T>
Result<> share_state(const TrainOptions& options, Communicator& world, int from, bool held,
                     std::uint64_t samples, Trainer<T>& trainer, TrainingMarks& marks) {
  const std::uint64_t mine[] = {held, held ? trainer.position().step : 0, held ? hash_of(trainer) : 0};
  const auto all = world.all_gather(mine);
  if (!all) return all.error();
  const RetainedState source = held_by(*all, from);
  if (source.any == 0) {
    return Error{ErrorCode::kProtocol,
                 "rank " + std::to_string(from) +
                     " holds no state of the training, although the launcher chose it as the source"};
  }
  bool needed = false;
  for (int rank = 0; rank < world.world_size(); ++rank) {
    const RetainedState one = held_by(*all, rank);
    const bool behind = one.any == 0 || one.step != source.step;
    if (!behind && one.hash != source.hash && options.sync_every_inter == 1)
      return differing(rank, from, source.step);
    needed = needed || behind || one.hash != source.hash;
  }
  const bool sends = world.rank() == from;
  StateHeader head = head_of(trainer, marks);
  std::vector<T> numbers;
  if (sends && needed) numbers = numbers_of(trainer);
  if (sends) head.hash = fnv_hash(std::as_bytes(std::span(numbers)));
  const StateHeader own = head;
  if (auto done = world.broadcast(std::as_writable_bytes(std::span(&head, 1)), from); !done) return done;
  if (head.parameters != own.parameters || head.running != own.running || head.vectors != own.vectors)
    return Error{ErrorCode::kProtocol, "rank " + std::to_string(from) + " trains another model"};
  if (needed) {
    numbers.resize(head.running + head.parameters * (1 + head.vectors));
    if (auto done = world.broadcast(std::as_writable_bytes(std::span(numbers)), from); !done) return done;
    if (fnv_hash(std::as_bytes(std::span(numbers))) != head.hash) {
      return Error{ErrorCode::kInternal, "rank " + std::to_string(world.rank()) +
                                             " received other weights than rank " + std::to_string(from) +
                                             " sent"};
    }
    take_numbers<T>(numbers, !held || mine[1] != source.step, trainer);
  }
  trainer.optimizer().set_steps(head.optimizer_steps);
  trainer.model().batches() = head.batches;
  trainer.dropped_in_a_row() = static_cast<int>(head.dropped_in_a_row);
  trainer.position() = position_here(options, head, samples, world.world_size());
  trainer.are_averaged();
  marks = head.marks;
  marks.world_size = world.world_size();
  return {};
}

template Result<> share_state<float>(const TrainOptions&, Communicator&, int, bool, std::uint64_t,
                                     Trainer<float>&, TrainingMarks&);
template Result<> share_state<double>(const TrainOptions&, Communicator&, int, bool, std::uint64_t,
                                      Trainer<double>&, TrainingMarks&);

}  // namespace ddp::train
