#include "apps/train/collectives/cpu/shm_group.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "apps/train/collectives/cpu/tcp_communicator.h"
#include "base/text.h"

namespace ddp::train {

namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kHead = kPage;  ///< holds the lost rank
constexpr std::size_t kAreasPerRank = 4;

static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

std::size_t lines_size(int ranks) {
  const std::size_t size = static_cast<std::size_t>(ranks) * sizeof(ShmSegment::RankLine);
  return (size + kPage - 1) / kPage * kPage;
}

std::size_t segment_size(int ranks) {
  return kHead + lines_size(ranks) + static_cast<std::size_t>(ranks) * kAreasPerRank * ShmSegment::kAreaSize;
}

Result<UniqueFd> sealed_memory(std::size_t size, int seals) {
  UniqueFd fd(::memfd_create("ddp-train", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) return system_error(errno, "memfd_create");
  if (::ftruncate(fd.get(), static_cast<off_t>(size)) != 0)
    return system_error(errno, "ftruncate of the shared memory");
  if (::fcntl(fd.get(), F_ADD_SEALS, seals | F_SEAL_SEAL) != 0)
    return system_error(errno, "seals of the shared memory");
  return fd;
}

}  // namespace

Result<UniqueFd> make_shm_buffer() {
  return sealed_memory(0, F_SEAL_SHRINK);
}

Result<UniqueFd> ShmSegment::make(int ranks) {
  return sealed_memory(segment_size(ranks), F_SEAL_SHRINK | F_SEAL_GROW);
}

Result<ShmSegment> ShmSegment::map(int memory, int ranks) {
  const std::size_t size = segment_size(ranks);
  struct stat status {};
  if (::fstat(memory, &status) != 0) return system_error(errno, "fstat of the shared memory");
  if (status.st_size != static_cast<off_t>(size)) {
    return error_of(ErrorCode::kProtocol, "the shared memory has ", status.st_size, " bytes, not ", size,
                    "; check that all ranks run the same version of train");
  }
  auto mapped = map_file(memory, size, PROT_READ | PROT_WRITE, MAP_SHARED);
  if (!mapped) return system_error(errno, "mmap of the shared memory");
  return ShmSegment(std::move(mapped), ranks);
}

// A new memfd is all zeros, which these atomics begin with.

std::atomic<std::uint32_t>& ShmSegment::lost() const {
  return *reinterpret_cast<std::atomic<std::uint32_t>*>(memory_.get());
}

ShmSegment::RankLine& ShmSegment::line(int rank) const {
  return reinterpret_cast<RankLine*>(memory_.get() + kHead)[rank];
}

std::span<std::byte> ShmSegment::area(int rank, std::size_t number) const {
  const std::size_t index = static_cast<std::size_t>(rank) * kAreasPerRank + number;
  return {memory_.get() + kHead + lines_size(ranks_) + index * kAreaSize, kAreaSize};
}

namespace {

/// About as long as a sleep and a wakeup take: a rank that publishes within that time costs no context
/// switch. A spin that was in vain halves the next one, since the other rank may need this very processor.
constexpr std::chrono::nanoseconds kLongestSpin{30'000};
constexpr std::chrono::nanoseconds kShortestSpin{500};
constexpr int kPausesPerSample = 8;
constexpr std::uint64_t kStagesPerSample = 8;

/// Up to this size, every rank sums all areas itself, which saves a round. Above, each rank sums a part for
/// all.
constexpr std::size_t kDirectBytes = 64 * 1024;
constexpr std::size_t kDirectBytesOfTwo = 256 * 1024;

/// Bytes of one part in one round. The data that a rank copies, sums and reads back then stays in its own
/// cache.
constexpr std::size_t kPieceBytes = 64 * 1024;
/// A block stays in the nearest cache between its sum and its copies.
constexpr std::size_t kBlockBytes = 8 * 1024;
/// Smaller sums go over areas, with one wait, and larger ones over shared memory, without copies into areas.
constexpr std::size_t kLeastInPlace = 256 * 1024;

constexpr int kAllRanks = -1;

void pause_briefly() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

int own_processors() {
  cpu_set_t set;
  if (::sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  return CPU_COUNT(&set);
}

}  // namespace

Result<ShmGroup> ShmGroup::open(GroupConfig config, NodeDescriptors descriptors) {
  const std::string me = config.me();
  auto segment = DDP_TRY(within(me, ShmSegment::map(descriptors.memory.get(), config.world_size)));
  ShmGroup group(std::move(config), std::move(descriptors), std::move(segment));
  group.liveness_ = UniqueFd(::epoll_create1(EPOLL_CLOEXEC));
  if (!group.liveness_) return within(me, system_error(errno, "epoll_create"));
  for (int rank = 0; rank < group.size(); ++rank) {
    if (rank == group.rank()) continue;
    epoll_event event{};  // a hang-up is always reported
    event.data.u32 = static_cast<std::uint32_t>(rank);
    const int liveness = group.descriptors_of(rank).liveness.get();
    if (::epoll_ctl(group.liveness_.get(), EPOLL_CTL_ADD, liveness, &event) != 0)
      return within(me, system_error(errno, "epoll_ctl"));
  }
  return group;
}

ShmGroup::ShmGroup(GroupConfig config, NodeDescriptors descriptors, ShmSegment segment)
    : config_(std::move(config)),
      descriptors_(std::move(descriptors)),
      segment_(std::move(segment)),
      gone_(static_cast<std::size_t>(config_.world_size)),
      spins_(own_processors() >= config_.world_size),
      spin_time_(kLongestSpin) {}

int ShmGroup::lost_rank() const {
  return static_cast<int>(segment_.lost().load()) - 1;
}

void ShmGroup::wake(int rank) {
  const std::uint64_t one = 1;
  // The write fails only if the doorbell's counter is at its maximum.
  (void)!::write(descriptors_of(rank).doorbell.get(), &one, sizeof one);
}

void ShmGroup::abandon(int lost_rank) {
  std::uint32_t none = 0;
  segment_.lost().compare_exchange_strong(none, static_cast<std::uint32_t>(lost_rank) + 1);
  for (int rank = 0; rank < size(); ++rank)
    wake(rank);
}

Error ShmGroup::fail(Error error) {
  if (!failed_) failed_ = error;
  return error;
}

Error ShmGroup::lost(int rank, std::string_view reason, ErrorCode code) {
  const int whom = config_.names[static_cast<std::size_t>(rank)];
  abandon(whom);
  return fail({code, concat(config_.me(), " lost rank ", whom, " (on this node): ", reason, " during ",
                            kind_text(kind_))});
}

Error ShmGroup::revoked() {
  return fail(error_of(ErrorCode::kCancelled, config_.me(), " was revoked during ", kind_text(kind_)));
}

Error ShmGroup::ended_by_mark() {
  const int whom = lost_rank();
  if (whom == config_.names[static_cast<std::size_t>(rank())]) {
    return fail(error_of(ErrorCode::kLinkLost, config_.me(),
                         " was reported lost by the other ranks as silent or in another "
                         "collective (was this process stopped?) during ",
                         kind_text(kind_)));
  }
  const bool here = std::find(config_.names.begin(), config_.names.end(), whom) != config_.names.end();
  return fail(error_of(
      ErrorCode::kLinkLost, config_.me(), " lost rank ", whom,
      here ? " (on this node): its process ended or hangs" : " (reported on this node): connection lost",
      " during ", kind_text(kind_)));
}

bool ShmGroup::has_published(int rank) const {
  return segment_.line(rank).stage.load() >= stage_;
}

bool ShmGroup::spin(int rank) {
  const auto& stage = segment_.line(rank).stage;
  if (stage.load(std::memory_order_acquire) >= stage_) return true;
  if (!spins_) return false;
  const auto end = std::chrono::steady_clock::now() + spin_time_;
  do {
    for (int i = 0; i < kPausesPerSample; ++i) {
      if (stage.load(std::memory_order_acquire) >= stage_) {
        spin_time_ = std::min(2 * spin_time_, kLongestSpin);
        return true;
      }
      pause_briefly();
    }
  } while (std::chrono::steady_clock::now() < end);
  spin_time_ = std::max(spin_time_ / 2, kShortestSpin);
  return false;
}

/// Notes which ranks' processes have ended. An ended rank harms only ranks that still need something of it.
Result<> ShmGroup::detect_ended_ranks() {
  epoll_event events[16];
  const int count = ::epoll_wait(liveness_.get(), events, 16, 0);
  for (int i = 0; i < count; ++i) {
    const std::size_t rank = events[i].data.u32;
    ::epoll_ctl(liveness_.get(), EPOLL_CTL_DEL, descriptors_.ranks[rank].liveness.get(), nullptr);
    gone_[rank] = true;
  }
  for (int rank = 0; rank < size(); ++rank) {
    if (!gone_[static_cast<std::size_t>(rank)] || has_published(rank)) continue;
    // It may have ended because of another rank's loss, which it has recorded then.
    if (lost_rank() >= 0) return ended_by_mark();
    return lost(rank, "its process ended");
  }
  return {};
}

Result<> ShmGroup::sleep_until(int rank) {
  auto& asleep = segment_.line(this->rank()).asleep;
  const int doorbell = descriptors_of(this->rank()).doorbell.get();
  const auto slice =
      std::max<std::chrono::milliseconds>(config_.step_timeout / 4, std::chrono::milliseconds(1));
  const auto& liveness = segment_.line(rank).liveness;
  std::uint32_t seen = liveness.load();
  Deadline deadline = std::chrono::steady_clock::now() + config_.step_timeout;
  Result<> result;
  while (true) {
    // The order matters: a rank that publishes after this check sees that this rank wants the doorbell. Its
    // partner is in sync().
    asleep.store(1);
    if (has_published(rank)) break;
    if (lost_rank() >= 0) {
      result = ended_by_mark();
      break;
    }
    pollfd slots[] = {{doorbell, POLLIN, 0}, {config_.interrupt, POLLIN, 0}, {liveness_.get(), POLLIN, 0}};
    const Deadline next_check = std::min(deadline, std::chrono::steady_clock::now() + slice);
    const int ready = ::poll(slots, 3, milliseconds_left(next_check));
    if (ready == 0) {
      show_activity();
      if (while_waiting_) while_waiting_();
      const std::uint32_t before = std::exchange(seen, liveness.load());
      if (seen != before) deadline = std::chrono::steady_clock::now() + config_.step_timeout;
    }
    if (ready > 0 && slots[0].revents != 0) {
      std::uint64_t rung = 0;
      (void)!::read(doorbell, &rung, sizeof rung);
    }
    if (ready > 0 && slots[1].revents != 0 && !has_published(rank)) {
      result = revoked();
      break;
    }
    if (ready > 0 && slots[2].revents != 0) {
      result = detect_ended_ranks();
      if (!result) break;
    }
    if (ready == 0 && milliseconds_left(deadline) == 0 && !has_published(rank)) {
      const double seconds = std::chrono::duration<double>(config_.step_timeout).count();
      result = lost(rank, format_text("no progress for %g s", seconds), ErrorCode::kTimeout);
      break;
    }
  }
  asleep.store(0);
  return result;
}

Result<> ShmGroup::wait_for(int rank) {
  if (spin(rank)) return {};
  DDP_TRY(detect_ended_ranks());
  return sleep_until(rank);
}

Result<> ShmGroup::sync(std::uint64_t size) {
  if (failed_) return *failed_;
  // Ranks that never have to wait must see a revocation too.
  if (stage_ % kStagesPerSample == 0 && is_revoked(config_.interrupt)) return revoked();
  ++stage_;
  const std::uint64_t tag = size * 256 + static_cast<std::uint64_t>(kind_);
  ShmSegment::RankLine& own = segment_.line(rank());
  // Relaxed is enough for a tag: its writer stores it before the stage, and a reader loads it after it has
  // seen that stage (or the next one, whose tag is the other of the two).
  own.tag[stage_ % 2].store(tag, std::memory_order_relaxed);
  // The partner of sleep_until(): there `asleep` is stored before the stage is loaded, and here the stage is
  // stored before `asleep` is loaded. All four accesses are sequentially consistent, so at least one of the
  // two ranks sees the other's store, and none sleeps without a ring. The exchange lets one rank ring.
  own.stage.store(stage_);
  for (int other = 0; other < this->size(); ++other) {
    if (other != rank() && segment_.line(other).asleep.load() != 0 && segment_.line(other).asleep.exchange(0))
      wake(other);
  }
  for (int other = 0; other < this->size(); ++other) {
    if (other == rank()) continue;
    DDP_TRY(wait_for(other));
    if (segment_.line(other).tag[stage_ % 2].load(std::memory_order_relaxed) != tag)
      return lost(other, "it runs another collective (were all ranks started with the same options?)",
                  ErrorCode::kProtocol);
  }
  return {};
}

/// Sums values of at most an area's size. Every rank sums all.
Result<> ShmGroup::direct_sum(std::span<std::byte> values, const VectorSum& sum) {
  const std::uint64_t turn = stage_;
  copy_bytes(segment_.slot(rank(), turn).data(), values.data(), values.size());
  DDP_TRY(sync(values.size()));
  const auto values_of = [&](int other) { return segment_.slot(other, turn).data(); };
  if (size() == 2) {  // a + b has the bits of b + a
    sum.add(values.data(), values_of(1 - rank()), values.size());
    return {};
  }
  sum.sum(values.data(), values_of(0), values_of(1), values.size());
  for (int other = 2; other < size(); ++other)
    sum.add(values.data(), values_of(other), values.size());
  return {};
}

Result<> ShmGroup::all_reduce(std::span<std::byte> values, const VectorSum& sum) {
  if (failed_) return *failed_;
  if (size() == 1) return {};
  if (values.size() <= (size() == 2 ? kDirectBytesOfTwo : kDirectBytes)) return direct_sum(values, sum);
  if (const auto at = shared_at(values)) return sum_in_place(values, *at, sum, size(), true);
  return rounds(values, sum, size(), true, true);
}

Result<> ShmGroup::reduce_parts(std::span<std::byte> values, const VectorSum& sum, int parts) {
  if (failed_) return *failed_;
  if (const auto at = shared_at(values)) return sum_in_place(values, *at, sum, parts, false);
  return rounds(values, sum, parts, true, false);
}

Result<> ShmGroup::gather_parts(std::span<std::byte> values, std::size_t element, int parts) {
  if (failed_) return *failed_;
  if (const auto at = shared_at(values)) return gather_in_place(values, *at, element, parts);
  return rounds(values, {element, nullptr, nullptr}, parts, false, true);
}

Result<> ShmGroup::broadcast(std::span<std::byte> data, int root) {
  if (failed_) return *failed_;
  for (std::size_t at = 0; at == 0 || at < data.size(); at += ShmSegment::kAreaSize) {
    const std::uint64_t turn = stage_;
    const auto piece = data.subspan(at, std::min(ShmSegment::kAreaSize, data.size() - at));
    std::byte* area = segment_.slot(root, turn).data();
    if (rank() == root) copy_bytes(area, piece.data(), piece.size());
    DDP_TRY(sync(data.size()));
    if (rank() != root) copy_bytes(piece.data(), area, piece.size());
  }
  return {};
}

Result<> ShmGroup::gather(std::span<const std::byte> mine, std::span<std::byte> all, int root) {
  if (failed_) return *failed_;
  for (std::size_t at = 0; at == 0 || at < mine.size(); at += ShmSegment::kAreaSize) {
    const std::uint64_t turn = stage_;
    const auto piece = mine.subspan(at, std::min(ShmSegment::kAreaSize, mine.size() - at));
    const bool receives = rank() == root || root == kAllRanks;
    if (rank() != root) copy_bytes(segment_.slot(rank(), turn).data(), piece.data(), piece.size());
    DDP_TRY(sync(mine.size()));
    for (int other = 0; receives && other < size(); ++other) {
      copy_bytes(all.data() + static_cast<std::size_t>(other) * mine.size() + at,
                 other == rank() ? piece.data() : segment_.slot(other, turn).data(), piece.size());
    }
  }
  return {};
}

Result<> ShmGroup::all_gather(std::span<const std::byte> mine, std::span<std::byte> all) {
  return gather(mine, all, kAllRanks);
}

Result<> ShmGroup::barrier() {
  return sync(0);
}

/// The same piece of each part. `begin` and `size`: bytes in the values, by part.
struct ShmGroup::Round {
  struct RoundPiece {
    std::size_t begin = 0;
    std::size_t size = 0;
  };
  std::span<std::byte> values;
  std::vector<RoundPiece> pieces;
  std::uint64_t turn = 0;
  /// Returns where rank `of`'s slot holds the piece of `part`; the slot leaves out `of`'s own part.
  std::size_t place(int of, int part) const {
    std::size_t place = 0;
    for (int p = 0; p < part; ++p)
      place += p == of ? 0 : pieces[static_cast<std::size_t>(p)].size;
    return place;
  }
  /// Tests the first part, which is the largest.
  bool empty() const { return pieces.front().size == 0; }
};

/// Returns round `number` of values in `parts` parts.
ShmGroup::Round ShmGroup::round_at(std::span<std::byte> values, std::size_t element, int parts,
                                   std::size_t number) {
  const std::size_t area = ShmSegment::kAreaSize / static_cast<std::size_t>(parts);
  const std::size_t most = std::min(kPieceBytes, area) / element;
  Round round;
  round.values = values;
  for (int part = 0; part < parts; ++part) {
    const PartBounds bounds = part_bounds(values.size() / element, parts, part);
    const std::size_t begin = std::min(number * most, bounds.size);
    const std::size_t size = std::min(most, bounds.size - begin);
    round.pieces.push_back({(bounds.begin + begin) * element, size * element});
  }
  return round;
}

void ShmGroup::copy_others_parts(const Round& round) {
  std::byte* to = segment_.slot(rank(), round.turn).data();
  for (std::size_t part = 0; part < round.pieces.size(); ++part) {
    if (static_cast<int>(part) == rank()) continue;
    const Round::RoundPiece& piece = round.pieces[part];
    copy_bytes(to, round.values.data() + piece.begin, piece.size);
    to += piece.size;
  }
}

void ShmGroup::sum_own_part(const Round& round, const VectorSum& sum) {
  const Round::RoundPiece& piece = round.pieces[static_cast<std::size_t>(rank())];
  std::byte* own = round.values.data() + piece.begin;
  // The sum runs in the order of the ranks, with this rank's values at their place.
  const auto values_of = [&](int other) -> const std::byte* {
    return other == rank() ? own : segment_.slot(other, round.turn).data() + round.place(other, rank());
  };
  std::byte* result = segment_.result(rank(), stage_).data();
  for (std::size_t at = 0; at < piece.size; at += kBlockBytes) {
    const std::size_t size = std::min(kBlockBytes, piece.size - at);
    sum.sum(result + at, values_of(0) + at, values_of(1) + at, size);
    for (int other = 2; other < this->size(); ++other)
      sum.add(result + at, values_of(other) + at, size);
    copy_bytes(own + at, result + at, size);
  }
}

void ShmGroup::copy_results(const Round& round) {
  for (std::size_t part = 0; part < round.pieces.size(); ++part) {
    if (static_cast<int>(part) == rank()) continue;
    const Round::RoundPiece& piece = round.pieces[part];
    copy_bytes(round.values.data() + piece.begin, segment_.result(static_cast<int>(part), round.turn).data(),
               piece.size);
  }
}

/// Between two waits, the ranks sum one piece of every part and copy the pieces for the next round. So a sum
/// that goes to all ranks takes one wait per round. A rank writes an area again two turns later: by then, all
/// have published once more after they read it.
Result<> ShmGroup::rounds(std::span<std::byte> values, const VectorSum& sum, int parts, bool reduce,
                          bool gather) {
  if (size() == 1) return {};
  const bool owns = rank() < parts;
  Round round = round_at(values, sum.element, parts, 0);
  if (reduce) {
    round.turn = stage_;
    copy_others_parts(round);
    DDP_TRY(sync(values.size()));
  }
  for (std::size_t number = 1;; ++number) {
    Round next = round_at(values, sum.element, parts, number);
    const std::uint64_t turn = stage_;
    if (reduce && owns) sum_own_part(round, sum);
    if (reduce && !next.empty()) {
      next.turn = turn;
      copy_others_parts(next);
    }
    if (!reduce && owns) {
      const Round::RoundPiece& own = round.pieces[static_cast<std::size_t>(rank())];
      copy_bytes(segment_.result(rank(), turn).data(), values.data() + own.begin, own.size);
    }
    if (!reduce || gather || !next.empty()) DDP_TRY(sync(values.size()));
    if (gather) {
      round.turn = turn;
      copy_results(round);
    }
    if (next.empty()) return {};
    round = std::move(next);
  }
}

/// All ranks come to the same result, since each step ends in numbers that all have.
Result<std::span<std::byte>> ShmGroup::share(std::size_t bytes) {
  if (failed_) return *failed_;
  if (size() == 1 || bytes == 0 || !buffers_.empty()) return std::span<std::byte>();
  const int own = descriptors_of(rank()).buffer.get();
  const auto all_say = [this](std::uint64_t mine) -> Result<bool> {
    std::vector<std::uint64_t> said(static_cast<std::size_t>(size()));
    DDP_TRY(all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(said))));
    return said[0] != 0 && std::equal(said.begin() + 1, said.end(), said.begin());
  };
  // All pages are populated, so that no sum waits for them.
  const auto map = [bytes](int file) {
    return map_file(file, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE);
  };
  // This rank's pages exist before other ranks map them.
  bool mapped = ::ftruncate(own, static_cast<off_t>(bytes)) == 0 && map(own) != nullptr;
  const bool all_have = DDP_TRY(all_say(mapped ? bytes : 0));
  if (!all_have) return std::span<std::byte>();
  for (const RankDescriptors& of_rank : descriptors_.ranks) {
    buffers_.push_back(map(of_rank.buffer.get()));
    mapped = mapped && buffers_.back() != nullptr;
  }
  const bool all_map = DDP_TRY(all_say(mapped ? bytes : 0));
  if (all_map) return span_of(buffers_[static_cast<std::size_t>(rank())]);
  buffers_.clear();
  return std::span<std::byte>();
}

std::optional<std::size_t> ShmGroup::shared_at(std::span<const std::byte> values) const {
  if (buffers_.empty() || values.size() <= kLeastInPlace) return std::nullopt;
  const auto own = span_of(buffers_[static_cast<std::size_t>(rank())]);
  if (values.data() < own.data() || values.data() + values.size() > own.data() + own.size())
    return std::nullopt;
  return static_cast<std::size_t>(values.data() - own.data());
}

/// Another offset or size, or values outside the shared memory, give another tag, as another operation would.
std::uint64_t ShmGroup::tag_in_place(std::size_t at, std::size_t size) {
  const std::uint64_t mixed = (size * 31 + at) * 0x9e37'79b9'7f4a'7c15u;
  return std::uint64_t{1} << 54 | mixed >> 11;
}

/// Sums part rank() of the values at `at` into this rank's values, and with `gather` into all ranks' values.
Result<> ShmGroup::sum_in_place(std::span<std::byte> values, std::size_t at, const VectorSum& sum, int parts,
                                bool gather) {
  const std::uint64_t tag = tag_in_place(at, values.size());
  DDP_TRY(sync(tag));
  if (rank() < parts) {
    const PartBounds part = part_bounds(values.size() / sum.element, parts, rank());
    const std::size_t begin = at + part.begin * sum.element, end = begin + part.size * sum.element;
    const auto of = [this](std::size_t other) { return buffers_[other].get(); };
    alignas(64) std::byte block[kBlockBytes];
    for (std::size_t place = begin; place < end; place += kBlockBytes) {
      const std::size_t bytes = std::min(kBlockBytes, end - place);
      // The sum runs in the order of the ranks, as over areas.
      sum.sum(block, of(0) + place, of(1) + place, bytes);
      for (std::size_t other = 2; other < buffers_.size(); ++other)
        sum.add(block, of(other) + place, bytes);
      for (std::size_t other = 0; other < buffers_.size(); ++other) {
        if (gather || other == static_cast<std::size_t>(rank())) copy_bytes(of(other) + place, block, bytes);
      }
    }
  }
  return sync(tag);
}

Result<> ShmGroup::gather_in_place(std::span<std::byte> values, std::size_t at, std::size_t element,
                                   int parts) {
  const std::uint64_t tag = tag_in_place(at, values.size());
  DDP_TRY(sync(tag));
  for (int owner = 0; owner < parts; ++owner) {
    if (owner == rank()) continue;
    const PartBounds part = part_bounds(values.size() / element, parts, owner);
    copy_bytes(values.data() + part.begin * element,
               buffers_[static_cast<std::size_t>(owner)].get() + at + part.begin * element,
               part.size * element);
  }
  return sync(tag);
}

}  // namespace ddp::train
