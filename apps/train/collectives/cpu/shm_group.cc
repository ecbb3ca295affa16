#include "apps/train/collectives/cpu/shm_group.h"

#include <poll.h>
#include <sched.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <string>
#include <utility>

#include "apps/train/collectives/cpu/tcp_socket.h"
#include "base/format_text.h"

namespace ddp::train {

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

Result<ShmGroup> ShmGroup::open(NodeConfig config, NodeLinks links) {
  auto segment = ShmSegment::map(links.memory.get(), config.local_world_size);
  const std::string me = "rank " + std::to_string(config.ranks[static_cast<std::size_t>(config.local_rank)]);
  if (!segment) return within(me, segment.error());
  ShmGroup group(std::move(config), std::move(links), std::move(*segment));
  group.liveness_ = UniqueFd(::epoll_create1(EPOLL_CLOEXEC));
  if (!group.liveness_) return within(me, system_error(errno, "epoll_create"));
  for (int rank = 0; rank < group.size(); ++rank) {
    if (rank == group.rank()) continue;
    epoll_event event{};  // a hang-up is always reported
    event.data.u32 = static_cast<std::uint32_t>(rank);
    const int liveness = group.links_.liveness[static_cast<std::size_t>(rank)].get();
    if (::epoll_ctl(group.liveness_.get(), EPOLL_CTL_ADD, liveness, &event) != 0)
      return within(me, system_error(errno, "epoll_ctl"));
  }
  return group;
}

ShmGroup::ShmGroup(NodeConfig config, NodeLinks links, ShmSegment segment)
    : config_(std::move(config)),
      links_(std::move(links)),
      segment_(std::move(segment)),
      gone_(static_cast<std::size_t>(config_.local_world_size)),
      spins_(own_processors() >= config_.local_world_size),
      spin_time_(kLongestSpin) {}

int ShmGroup::lost_rank() const {
  return static_cast<int>(segment_.lost().load()) - 1;
}

std::string ShmGroup::me() const {
  return "rank " + std::to_string(config_.ranks[static_cast<std::size_t>(config_.local_rank)]);
}

void ShmGroup::wake(int rank) {
  const std::uint64_t one = 1;
  // The write fails only if the doorbell's counter is at its maximum.
  (void)!::write(links_.doorbells[static_cast<std::size_t>(rank)].get(), &one, sizeof one);
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
  const int whom = config_.ranks[static_cast<std::size_t>(rank)];
  abandon(whom);
  return fail({code, me() + " lost rank " + std::to_string(whom) + " (on this node): " + std::string(reason) +
                         " during " + std::string(kind_text(kind_))});
}

Error ShmGroup::revoked() {
  return fail({ErrorCode::kCancelled, me() + " was revoked during " + std::string(kind_text(kind_))});
}

Error ShmGroup::ended_by_mark() {
  const int whom = lost_rank();
  if (whom == config_.ranks[static_cast<std::size_t>(rank())]) {
    return fail({ErrorCode::kLinkLost, me() +
                                           " was reported lost by the other ranks as silent or in another "
                                           "collective (was this process stopped?) "
                                           "during " +
                                           std::string(kind_text(kind_))});
  }
  const bool here = std::find(config_.ranks.begin(), config_.ranks.end(), whom) != config_.ranks.end();
  return fail({ErrorCode::kLinkLost, me() + " lost rank " + std::to_string(whom) +
                                         (here ? " (on this node): its process ended or hangs"
                                               : " (reported on this node): connection lost") +
                                         " during " + std::string(kind_text(kind_))});
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
    ::epoll_ctl(liveness_.get(), EPOLL_CTL_DEL, links_.liveness[rank].get(), nullptr);
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
  const int doorbell = links_.doorbells[static_cast<std::size_t>(this->rank())].get();
  const auto slice =
      std::max<std::chrono::milliseconds>(config_.step_timeout / 4, std::chrono::milliseconds(1));
  const auto& liveness = segment_.line(rank).liveness;
  std::uint32_t seen = liveness.load();
  Deadline deadline = std::chrono::steady_clock::now() + config_.step_timeout;
  Result<> result;
  while (true) {
    // The order matters: a rank that publishes after this check sees that this rank wants the doorbell.
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
  if (auto seen = detect_ended_ranks(); !seen) return seen;
  return sleep_until(rank);
}

Result<> ShmGroup::sync(std::uint64_t size) {
  if (failed_) return *failed_;
  // Ranks that never have to wait must see a revocation too.
  if (stage_ % kStagesPerSample == 0 && config_.interrupt >= 0) {
    pollfd slot{config_.interrupt, POLLIN, 0};
    if (::poll(&slot, 1, 0) > 0) return revoked();
  }
  ++stage_;
  const std::uint64_t tag = size * 256 + static_cast<std::uint64_t>(kind_);
  ShmSegment::RankLine& own = segment_.line(rank());
  own.tag[stage_ % 2].store(tag, std::memory_order_relaxed);
  own.stage.store(stage_);
  for (int other = 0; other < this->size(); ++other) {
    if (other != rank() && segment_.line(other).asleep.load() != 0 && segment_.line(other).asleep.exchange(0))
      wake(other);
  }
  for (int other = 0; other < this->size(); ++other) {
    if (other == rank()) continue;
    if (auto done = wait_for(other); !done) return done;
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
  if (auto all = sync(values.size()); !all) return all;
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
    if (auto all = sync(data.size()); !all) return all;
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
    if (auto done = sync(mine.size()); !done) return done;
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

}  // namespace ddp::train
