#include "apps/train/bench/measurement.h"

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <new>
#include <numeric>
#include <span>
#include <utility>

#include "apps/train/data/hash.h"
#include "base/text.h"

namespace ddp::train {

Result<std::unique_ptr<BenchMemory>> BenchMemory::make(Communicator& communicator, std::size_t bytes) {
  std::unique_ptr<BenchMemory> memory(new BenchMemory(communicator));
  if (communicator.has_device_operations()) {
    memory->device_ = DDP_TRY(DeviceBuffer::make(communicator, bytes));
    memory->bytes_ = memory->device_->memory().bytes;
  } else if (const auto shared = communicator.share_memory(bytes); !shared.empty()) {
    memory->bytes_ = shared;
  } else {
    try {
      memory->own_ = AlignedBuffer<float>(bytes / sizeof(float));
    } catch (const std::bad_alloc&) {  // a limit of the process, or other processes were faster
      return Error{ErrorCode::kSystem, "this process cannot allocate " + format_bytes(bytes) +
                                           " of memory for the messages; write a smaller -b or -e"};
    }
    memory->bytes_ = std::as_writable_bytes(memory->own_.span());
  }
  return memory;
}

std::string BenchMemory::registration() const {
  if (device_ == nullptr) return "";
  switch (device_->memory().registration) {
    case DeviceMemory::RegistrationKind::kWindow: return "windows";
    case DeviceMemory::RegistrationKind::kRegistered: return "registered";
    case DeviceMemory::RegistrationKind::kNone: break;
  }
  return "not registered";
}

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kLatencyBytes = 8;
constexpr std::size_t kAlignment = 512;                     // of what is sent out of place
constexpr std::size_t kMaxInFlight = std::size_t{1} << 30;  // bytes
constexpr int kLatencyRuns = 10;                            // for each run of the largest message

std::size_t aligned(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

double microseconds_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
}

/// The closed form of what the ranks send, as the bits of elements. Sums are exact: in float32 over any
/// number of ranks; of 16 bits whole numbers are exact up to 256, so only the first ranks have other numbers
/// than 0. Where nothing is summed, the bits depend on rank and index only, and look random.
class BenchValues {
 public:
  BenchValues(BenchOperation kind, NumberType type, int world) : type_(type), world_(world) {
    is_sum_ = kind == BenchOperation::kAllReduce || kind == BenchOperation::kReduceScatter;
    for (int rank = 0; rank < world; ++rank)
      sum_at_0_ += number(rank, 0);
  }

  std::uint32_t of(int rank, std::size_t index) const {
    if (is_sum_) return encode(number(rank, index));
    return static_cast<std::uint32_t>(mix_bits((static_cast<std::uint64_t>(rank) << 40) + index));
  }
  /// The sum over the ranks.
  std::uint32_t sum(std::size_t index) const {
    return encode(is_small() ? sum_at_0_ * static_cast<double>(1 + index % 2)
                             : sum_at_0_ + static_cast<double>(index % 7) * world_);
  }

 private:
  static constexpr int kSmallRanks = 128;

  bool is_small() const { return type_ != NumberType::kFloat32; }
  double number(int rank, std::size_t index) const {
    if (is_small()) return rank < kSmallRanks ? static_cast<double>(1 + index % 2) : 0;
    return (rank % 64) + 1 + static_cast<int>(index % 7);
  }
  /// Returns the bits of a whole number that the type has exactly.
  std::uint32_t encode(double number) const {
    const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(number));
    if (type_ == NumberType::kFloat32) return bits;
    if (type_ == NumberType::kBfloat16) return bits >> 16;
    return bits == 0 ? 0 : (bits >> 13) - ((127 - 15) << 10);  // another bias of the exponent
  }

  NumberType type_;
  int world_;
  bool is_sum_ = false;
  double sum_at_0_ = 0;
};

CollectiveKind device_kind(BenchOperation kind) {
  using enum CollectiveKind;
  constexpr CollectiveKind kKinds[] = {kAllReduce, kAllGather,   kReduceScatter, kBroadcast,
                                       kAllToAll,  kSendReceive, kSendReceive};
  return kKinds[static_cast<std::size_t>(kind)];
}

/// One operation on a buffer of numbers, floats in host memory; nccl-tests' "size" is `bytes` of it.
class MeasuredOperation {
 public:
  /// The operation works in `memory`, which must outlive it. kPairs exchanges with `peer`, on GPUs.
  MeasuredOperation(BenchOperation kind, NumberType type, bool out_of_place, BenchMemory& memory,
                    std::size_t bytes, int peer = -1)
      : kind_(kind),
        size_(size_of(type)),
        memory_(memory),
        rank_(memory.communicator().rank()),
        world_(memory.communicator().world_size()),
        values_(kind, type, world_) {
    parts_ = parts_of(kind, world_);
    count_ = bytes / size_ / parts_ * parts_;
    sent_at_ = out_of_place || is_out_of_place(kind) ? aligned(this->bytes()) : 0;
    // Each rank of a ring sends to the next one.
    to_ = peer >= 0 ? peer : (rank_ + 1) % world_;
    from_ = peer >= 0 ? peer : (rank_ + world_ - 1) % world_;
    if (memory.device() == nullptr) return;
    std::byte* const data = memory.bytes().data();
    memory.device()->choose(
        {device_kind(kind), data, count_, type, 0, sent_at_ != 0 ? data + sent_at_ : nullptr, to_, from_});
  }

  std::size_t count() const { return count_; }
  std::size_t bytes() const { return count_ * size_; }

  Result<> run() {
    if (memory_.device() != nullptr) return memory_.device()->run();
    Communicator& communicator = memory_.communicator();
    const auto bytes = memory_.bytes().first(this->bytes());
    const std::span numbers(reinterpret_cast<float*>(bytes.data()), count_);
    switch (kind_) {
      case BenchOperation::kAllReduce: return communicator.all_reduce_sum(numbers);
      case BenchOperation::kAllGather: return communicator.all_gather_parts(bytes);
      case BenchOperation::kReduceScatter: return communicator.reduce_scatter_sum(numbers);
      case BenchOperation::kBroadcast: return communicator.broadcast(bytes, 0);
      case BenchOperation::kAllToAll:
      case BenchOperation::kSendReceive:
      case BenchOperation::kPairs: break;
    }
    return Error{ErrorCode::kInternal, "this transport has no such operation"};
  }

  /// Carries out the operation once and returns the microseconds, on a GPU by the GPU's clock.
  Result<double> time() {
    if (memory_.device() != nullptr) return memory_.device()->replay(1);
    const auto begin = Clock::now();
    DDP_TRY(run());
    return microseconds_since(begin);
  }

  /// Returns the mean of operations that follow each other without a pause of the GPU; only in GPU memory. A
  /// deadline counts from the start of a wait, so one graph may not have all operations.
  Result<double> mean_in_graphs(int count) {
    constexpr std::size_t kMost = 256;
    const int most = static_cast<int>(std::clamp<std::size_t>(kMaxInFlight / bytes(), 1, kMost));
    const int graphs = (count + most - 1) / most, each = (count + graphs - 1) / graphs;
    DDP_TRY(memory_.device()->replay(each));  // captures the graph
    double sum = 0;
    for (int i = 0; i < graphs; ++i)
      sum += DDP_TRY(memory_.device()->replay(each));
    return sum / (graphs * each);
  }

  /// Carries out the operation `times`, at least once. Returns the number of wrong elements of all results,
  /// by the part of the result. 0 times: nothing is compared.
  Result<std::vector<std::uint64_t>> check(int times) {
    std::vector<std::uint64_t> wrong(parts_);
    for (int time = 0; time < std::max(times, 1); ++time) {
      DDP_TRY(fill());
      DDP_TRY(run());
      if (times > 0) DDP_TRY(compare(wrong));
    }
    return wrong;
  }

 private:
  /// Writes what this rank sends; where the result will be as well, so that a missing result is wrong.
  Result<> fill() {
    DeviceBuffer* const device = memory_.device();
    std::vector<std::byte> copy(device != nullptr ? bytes() : 0);
    const std::span<std::byte> numbers = device != nullptr ? std::span(copy) : memory_.bytes();
    for (std::size_t i = 0; i < count_; ++i) {
      const std::uint32_t bits = values_.of(rank_, i);
      copy_bits(numbers.data() + i * size_, &bits);
    }
    if (device == nullptr) return {};
    if (sent_at_ != 0) DDP_TRY(device->put(copy, sent_at_));
    return device->put(copy);
  }

  Result<> compare(std::vector<std::uint64_t>& wrong) {
    DeviceBuffer* const device = memory_.device();
    std::vector<std::byte> copy(device != nullptr ? bytes() : 0);
    if (device != nullptr) DDP_TRY(device->get(copy));
    const std::span<const std::byte> numbers = device != nullptr ? std::span(copy) : memory_.bytes();
    for (std::size_t part = 0; part < parts_; ++part) {
      if (kind_ == BenchOperation::kReduceScatter && part != static_cast<std::size_t>(rank_)) continue;
      const std::size_t size = count_ / parts_, begin = part * size;
      for (std::size_t i = 0; i < size; ++i) {
        std::uint32_t expected = right(static_cast<int>(part), size, i), bits = expected;
        copy_bits(&bits, numbers.data() + (begin + i) * size_);
        wrong[part] += bits != expected;
      }
    }
    return {};
  }

  /// Copies an element; of 32 bits the low ones come first.
  void copy_bits(void* to, const void* from) const {
    if (size_ == sizeof(std::uint32_t)) {
      std::memcpy(to, from, sizeof(std::uint32_t));
    } else {
      std::memcpy(to, from, sizeof(std::uint16_t));
    }
  }

  /// Returns the right element `i` of a part of the result.
  std::uint32_t right(int part, std::size_t size, std::size_t i) const {
    switch (kind_) {
      case BenchOperation::kAllReduce:
      case BenchOperation::kReduceScatter: return values_.sum(static_cast<std::size_t>(part) * size + i);
      case BenchOperation::kAllGather: return values_.of(part, static_cast<std::size_t>(part) * size + i);
      case BenchOperation::kAllToAll: return values_.of(part, static_cast<std::size_t>(rank_) * size + i);
      case BenchOperation::kBroadcast: return values_.of(0, i);
      case BenchOperation::kSendReceive:
      case BenchOperation::kPairs: break;
    }
    return values_.of(from_, i);
  }

  BenchOperation kind_;
  std::size_t size_;  ///< bytes of an element
  BenchMemory& memory_;
  int rank_;
  int world_;
  BenchValues values_;
  std::size_t parts_ = 1;
  std::size_t count_ = 0;
  std::size_t sent_at_ = 0;  ///< 0: in place
  int to_ = 0, from_ = 0;
};

/// What a rank measured of one message size.
struct Times {
  double mean = 0, p50 = 0, p99 = 0;  ///< microseconds
  std::uint64_t wrong = 0;            ///< elements
};

Result<Times> time_each(MeasuredOperation& operation, int warmup, int iterations) {
  for (int i = 0; i < warmup; ++i)
    DDP_TRY(operation.time());
  std::vector<double> each;
  for (int i = 0; i < iterations; ++i)
    each.push_back(DDP_TRY(operation.time()));
  std::sort(each.begin(), each.end());
  const auto at = [&](double share) {
    return each[static_cast<std::size_t>(share * static_cast<double>(each.size() - 1))];
  };
  return Times{std::accumulate(each.begin(), each.end(), 0.0) / iterations, at(0.5), at(0.99)};
}

/// Lets each two ranks exchange a part of a message of `bytes`, and returns the ranks that have a part in
/// most of the wrong exchanges. A rank that sees a wrong sum does not know whose numbers were wrong.
Result<std::vector<int>> find_culprits(const BenchOptions& options, BenchMemory& memory, std::size_t bytes) {
  Communicator& ranks = memory.communicator();
  const auto kind = memory.device() != nullptr ? BenchOperation::kAllToAll : BenchOperation::kAllGather;
  // An exchange is out of place, so it has half of the memory.
  bytes = std::max(std::min(bytes, memory.bytes().size() / 2 / kAlignment * kAlignment),
                   size_of(options.type) * static_cast<std::size_t>(ranks.world_size()));
  MeasuredOperation exchange(kind, options.type, false, memory, bytes);
  const auto mine = DDP_TRY(exchange.check(1));
  const auto all = DDP_TRY(ranks.all_gather(mine));
  std::vector<PairResult> pairs, wrong;
  for (std::size_t i = 0; i < all.size(); ++i) {
    pairs.push_back({static_cast<int>(i / mine.size()), static_cast<int>(i % mine.size())});
    if (all[i] != 0) wrong.push_back(pairs.back());
  }
  return blame_by_majority(pairs, wrong);
}

}  // namespace

std::size_t memory_of(const BenchOptions& options, std::size_t bytes) {
  constexpr std::size_t kLeast = 64u << 10;  // room for find_culprits(), with any number of ranks
  return std::max(options.out_of_place || is_out_of_place(options.operation) ? 2 * aligned(bytes) : bytes,
                  kLeast);
}

Result<BenchRow> measure_row(const BenchOptions& options, BenchMemory& memory, std::size_t bytes) {
  Communicator& communicator = memory.communicator();
  MeasuredOperation operation(options.operation, options.type, options.out_of_place, memory, bytes);
  BenchRow row;
  row.count = operation.count() / parts_of(options.operation, communicator.world_size());
  row.bytes = operation.bytes();
  const auto wrong = DDP_TRY(operation.check(options.check));
  DDP_TRY(communicator.barrier());
  const bool on_device = memory.device() != nullptr;
  const bool waits_for_all =
      options.operation != BenchOperation::kBroadcast && options.operation != BenchOperation::kSendReceive;
  // The first operation of a graph captures it.
  auto times = DDP_TRY(time_each(operation, std::max(options.warmup, on_device ? 1 : 0), options.iterations));
  if (on_device) times.mean = DDP_TRY(operation.mean_in_graphs(options.iterations));
  times.wrong = std::accumulate(wrong.begin(), wrong.end(), std::uint64_t{0});
  const auto all = DDP_TRY(gather_values(communicator, times));
  row.wrong = options.check != 0 ? 0 : -1;
  std::vector<double> medians;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const Times& theirs = all[rank];
    row.mean_us += theirs.mean / static_cast<double>(all.size());
    if (theirs.mean > row.slowest_us) {
      row.slowest = static_cast<int>(rank);
      row.slowest_us = theirs.mean;
    }
    medians.push_back(theirs.p50);
    row.p99_us = std::max(row.p99_us, theirs.p99);
    if (options.check == 0 || theirs.wrong == 0) continue;
    row.wrong += static_cast<std::int64_t>(theirs.wrong);
    row.witnesses.push_back(static_cast<int>(rank));
  }
  row.p50_us = *std::max_element(medians.begin(), medians.end());
  if (on_device && waits_for_all) row.late = late_rank(medians, row.late_us);
  if (!row.witnesses.empty()) row.culprits = DDP_TRY(find_culprits(options, memory, row.bytes));
  return row;
}

namespace {

/// The results of a rank's pair of one round.
struct PairMeasurement {
  std::uint64_t failed = 0, wrong = 0;
  double latency_us = 0, bandwidth = 0;  ///< as in PairResult
};

/// Measures with this rank's peer. `memory` of all GPUs, or of the two ranks of the pair: in a gather of
/// theirs each gives a half. Each operation of a GPU captures a graph of its own.
Result<> measure_pair(const BenchOptions& options, BenchMemory& memory, int peer, PairMeasurement& measured) {
  const bool on_device = memory.device() != nullptr;
  const auto kind = on_device ? BenchOperation::kPairs : BenchOperation::kAllGather;
  const auto operation = [&](std::size_t bytes) {
    return MeasuredOperation(kind, NumberType::kFloat32, false, memory, (on_device ? 1 : 2) * bytes, peer);
  };
  const int warmup = std::max(options.warmup, 1);
  for (const std::size_t bytes : {kLatencyBytes, std::max(options.max_bytes, sizeof(float))}) {
    auto exchange = operation(bytes);
    for (const std::uint64_t part : DDP_TRY(exchange.check(options.check)))
      measured.wrong += sizeof(float) * part;
    const bool is_latency = bytes == kLatencyBytes;
    const auto times =
        DDP_TRY(time_each(exchange, warmup, (is_latency ? kLatencyRuns : 1) * options.iterations));
    if (is_latency) measured.latency_us = times.p50;
    measured.bandwidth = static_cast<double>(bytes) / times.p50 / 1e3;
  }
  return {};
}

Result<> measure_host_pair(const BenchOptions& options, const WorkerEnvironment& environment,
                           const CommWorld& world, std::pair<int, int> pair, PairMeasurement& measured) {
  WorldOptions limits;
  limits.start_timeout = limits.step_timeout = options.comm_timeout / 4;
  const auto two = DDP_TRY(
      join_pair(environment, limits, *world.directory, pair, world.same_node(pair.first, pair.second)));
  const auto memory = DDP_TRY(BenchMemory::make(*two, memory_of(options, options.max_bytes)));
  DDP_TRY(measure_pair(options, *memory, -1, measured));
  return two->barrier();
}

/// Where each rank is.
struct RankPlaces {
  std::vector<int> node_of;   ///< -1: unknown
  std::vector<int> local_of;  ///< its number there, which is the rail of its GPU's network
  bool knows_nodes() const { return std::ranges::count(node_of, -1) == 0; }
};

Result<RankPlaces> gather_places(const WorkerEnvironment& environment, Communicator& ranks) {
  const std::array<std::int64_t, 2> mine{environment.node, environment.local_rank};
  RankPlaces places;
  for (const auto& [node, local] : DDP_TRY(gather_values(ranks, mine))) {
    places.node_of.push_back(static_cast<int>(node));
    places.local_of.push_back(static_cast<int>(local));
  }
  return places;
}

}  // namespace

Result<std::vector<PairResult>> measure_pairs(const BenchOptions& options,
                                              const WorkerEnvironment& environment, const CommWorld& world,
                                              Communicator* gpus) {
  Communicator& all = *world.communicator;
  const int rank = all.rank();
  RankPlaces places = DDP_TRY(gather_places(environment, all));
  std::vector<int>& node_of = places.node_of;
  if (!places.knows_nodes()) std::iota(node_of.begin(), node_of.end(), 0);
  std::unique_ptr<BenchMemory> memory;
  if (gpus != nullptr) memory = DDP_TRY(BenchMemory::make(*gpus, memory_of(options, options.max_bytes)));
  std::vector<PairResult> pairs;
  for (const auto& round : pair_rounds(node_of)) {
    PairMeasurement measured;
    for (const auto& [first, second] : round) {
      if (first != rank && second != rank) continue;
      if (memory != nullptr) {
        DDP_TRY(measure_pair(options, *memory, first == rank ? second : first, measured));
      } else {
        measured.failed = measure_host_pair(options, environment, world, {first, second}, measured) ? 0 : 1;
      }
    }
    const auto theirs = DDP_TRY(gather_values(all, measured));  // is also a barrier: rounds do not overlap
    for (const auto& [first, second] : round) {
      const auto a = static_cast<std::size_t>(first), b = static_cast<std::size_t>(second);
      const PairMeasurement &one = theirs[a], &other = theirs[b];
      PairResult& pair = pairs.emplace_back();
      pair.first = first;
      pair.second = second;
      pair.same_node = node_of[a] == node_of[b];
      pair.same_rail = gpus != nullptr && !pair.same_node && places.local_of[a] == places.local_of[b];
      pair.failed = one.failed + other.failed != 0;
      pair.wrong = one.wrong + other.wrong;
      pair.latency_us = std::max(one.latency_us, other.latency_us);
      pair.bandwidth = std::min(one.bandwidth, other.bandwidth);
      pair.at_once = static_cast<int>(std::ranges::count_if(round, [&](const auto& beside) {
        const int nodes[] = {node_of[static_cast<std::size_t>(beside.first)],
                             node_of[static_cast<std::size_t>(beside.second)]};
        return nodes[0] == node_of[a] || nodes[1] == node_of[a] || nodes[0] == node_of[b] ||
               nodes[1] == node_of[b];
      }));
    }
  }
  std::ranges::sort(pairs, {}, [](const PairResult& pair) { return std::pair(pair.first, pair.second); });
  return pairs;
}

Result<std::vector<GroupResult>> measure_groups(const BenchOptions& options,
                                                const WorkerEnvironment& environment, Communicator& gpus) {
  const RankPlaces places = DDP_TRY(gather_places(environment, gpus));
  if (!places.knows_nodes()) return std::vector<GroupResult>();
  BenchOptions sums = options;
  sums.operation = BenchOperation::kAllReduce;
  const std::size_t bytes = std::max(options.max_bytes / sizeof(float), std::size_t{1}) * sizeof(float);
  std::vector<GroupResult> groups = groups_of(places.node_of, places.local_of);
  for (const bool is_rail : {false, true}) {
    if (std::ranges::count(groups, is_rail, &GroupResult::is_rail) == 0) continue;
    const auto own = std::ranges::find_if(groups, [&](const GroupResult& group) {
      return group.is_rail == is_rail && std::ranges::count(group.ranks, gpus.rank()) != 0;
    });
    struct OfGroup {
      double p50_us = 0;
      std::uint64_t wrong = 0, is_witness = 0;  // wrong elements, whether this rank has some
      std::int64_t late = -1;
    } mine;
    if (own == groups.end()) {
      DDP_TRY(gpus.split(-1, 0, 0));
    } else {
      const int number = static_cast<int>(std::ranges::find(own->ranks, gpus.rank()) - own->ranks.begin());
      const auto part = DDP_TRY(gpus.split(own->number, number, static_cast<int>(own->ranks.size())));
      const auto memory = DDP_TRY(BenchMemory::make(*part, memory_of(sums, bytes)));
      const BenchRow row = DDP_TRY(measure_row(sums, *memory, bytes));
      mine.p50_us = row.p50_us;  // a pause of one operation is no slow group
      mine.wrong = static_cast<std::uint64_t>(std::max<std::int64_t>(row.wrong, 0));
      mine.is_witness = static_cast<std::uint64_t>(std::ranges::count(row.witnesses, number));
      mine.late = row.late;
    }
    const auto all = DDP_TRY(gather_values(gpus, mine));
    for (GroupResult& group : groups) {
      if (group.is_rail != is_rail) continue;
      const OfGroup& first = all[static_cast<std::size_t>(group.ranks.front())];  // all have the same row
      BenchRow row{bytes};
      row.mean_us = first.p50_us;
      group.bandwidth =
          row.algbw(bus_factor(BenchOperation::kAllReduce, static_cast<int>(group.ranks.size())));
      group.wrong = first.wrong;
      std::ranges::copy_if(group.ranks, std::back_inserter(group.witnesses),
                           [&](int rank) { return all[static_cast<std::size_t>(rank)].is_witness != 0; });
      if (first.late >= 0) group.late = group.ranks[static_cast<std::size_t>(first.late)];
    }
  }
  return groups;
}

}  // namespace ddp::train
