#include "apps/train/health/health_network.h"

#include <algorithm>
#include <chrono>
#include <span>
#include <utility>

#include "apps/train/data/hash.h"
#include "apps/train/kernels/cpu/aligned_buffer.h"

namespace ddp::train {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kSmall = 8, kLarge = std::size_t{1} << 20;
constexpr int kSmallTimes = 50, kLargeTimes = 8;
constexpr std::size_t kSumBytes = std::size_t{16} << 20;
/// Part of the ranks' time limit that a pair may use: the other ranks must not time out when a pair fails.
constexpr int kPartOfTimeout = 4;

std::byte byte_of(int sender, int time, std::size_t index) {
  return static_cast<std::byte>(
      mix_bits((static_cast<std::uint64_t>(sender) << 8) + static_cast<unsigned>(time)) >> 8 * (index % 8));
}

double middle_time(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// Exchanges `size` bytes `times` times; returns the microseconds of the median exchange.
Result<double> exchange(Communicator& two, std::pair<int, int> ranks, std::size_t size, int times,
                        std::uint64_t& wrong) {
  const int mine = two.rank() == 0 ? ranks.first : ranks.second;
  const int other = two.rank() == 0 ? ranks.second : ranks.first;
  std::vector<std::byte> halves(2 * size);  // rank 0's message, then rank 1's
  const std::span<std::byte> sent = std::span(halves).subspan(two.rank() == 0 ? 0 : size, size);
  const std::span<std::byte> received = std::span(halves).subspan(two.rank() == 0 ? size : 0, size);
  std::vector<double> each;
  for (int time = 0; time < times; ++time) {
    for (std::size_t i = 0; i < size; ++i) {
      sent[i] = byte_of(mine, time, i);
      received[i] = std::byte{0};
    }
    const auto begin = Clock::now();
    if (auto done = two.all_gather_parts(halves); !done) return done.error();
    each.push_back(std::chrono::duration<double, std::micro>(Clock::now() - begin).count());
    for (std::size_t i = 0; i < size; ++i)
      wrong += received[i] != byte_of(other, time, i);
  }
  return middle_time(std::move(each));
}

/// This rank's pair of one round, as numbers for all_gather().
struct PairMeasurement {
  std::uint64_t failed = 0, wrong = 0, nanoseconds = 0, kilobytes_per_second = 0;
};

Result<> meet_pair(const WorkerEnvironment& environment, const WorldOptions& options, CommWorld& world,
                   std::pair<int, int> pair, PairMeasurement& measured) {
  auto two =
      join_pair(environment, options, *world.directory, pair, world.same_node(pair.first, pair.second));
  if (!two) return two.error();
  const auto latency = exchange(**two, pair, kSmall, kSmallTimes, measured.wrong);
  if (!latency) return latency.error();
  const auto time = exchange(**two, pair, kLarge, kLargeTimes, measured.wrong);
  if (!time) return time.error();
  measured.nanoseconds = static_cast<std::uint64_t>(*latency * 1e3);
  measured.kilobytes_per_second = static_cast<std::uint64_t>(static_cast<double>(kLarge) / *time * 1e3);
  return (*two)->barrier();
}

}  // namespace

Result<std::vector<HealthPair>> test_pairs(const WorkerEnvironment& environment, const WorldOptions& options,
                                           CommWorld& world) {
  std::vector<HealthPair> pairs;
  WorldOptions shorter = options;
  shorter.start_timeout = shorter.step_timeout = options.step_timeout / kPartOfTimeout;
  const int rank = world.communicator->rank();
  for (const auto& round : pair_rounds(world.communicator->world_size())) {
    PairMeasurement measured;
    for (const auto& pair : round) {
      if (pair.first != rank && pair.second != rank) continue;
      measured.failed = meet_pair(environment, shorter, world, pair, measured) ? 0 : 1;
    }
    const std::uint64_t mine[] = {measured.failed, measured.wrong, measured.nanoseconds,
                                  measured.kilobytes_per_second};
    const auto all = world.communicator->all_gather(mine);  // is also a barrier: rounds do not overlap
    if (!all) return all.error();
    for (const auto& pair : round) {
      const std::uint64_t* first = all->data() + 4 * static_cast<std::size_t>(pair.first);
      const std::uint64_t* second = all->data() + 4 * static_cast<std::size_t>(pair.second);
      HealthPair& met = pairs.emplace_back();
      met.failed = first[0] + second[0] != 0;
      met.wrong = first[1] + second[1];
      met.result = {pair.first, pair.second, world.same_node(pair.first, pair.second),
                    static_cast<double>(first[2]) / 1e3, static_cast<double>(first[3]) / 1e6};
    }
  }
  std::sort(pairs.begin(), pairs.end(), [](const HealthPair& a, const HealthPair& b) {
    return std::pair(a.result.first, a.result.second) < std::pair(b.result.first, b.result.second);
  });
  return pairs;
}

Result<std::uint64_t> test_sum(Communicator& world, int times, bool inject) {
  // Sums of these whole numbers over any number of ranks are exact in float.
  const auto value = [](int rank, std::size_t index) {
    return (rank % 64) + 1 + static_cast<int>(index % 7);
  };
  double ranks_alone = 0;
  for (int rank = 0; rank < world.world_size(); ++rank)
    ranks_alone += value(rank, 0);
  AlignedBuffer<float> numbers(kSumBytes / sizeof(float));
  std::uint64_t wrong = 0;
  for (int time = 0; time < times; ++time) {
    for (std::size_t i = 0; i < numbers.size(); ++i)
      numbers.data()[i] = static_cast<float>(value(world.rank(), i));
    if (auto done = world.all_reduce_sum(numbers.span()); !done) return done.error();
    if (inject && time == 0) numbers.data()[numbers.size() / 3] += 1;
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      const double right = ranks_alone + static_cast<double>(i % 7) * world.world_size();
      wrong += static_cast<double>(numbers.data()[i]) != right;
    }
  }
  return wrong;
}

}  // namespace ddp::train
