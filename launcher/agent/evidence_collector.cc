#include "launcher/agent/evidence_collector.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <memory>
#include <utility>

#include "base/clock.h"
#include "base/files.h"
#include "launcher/keeper/cgroup.h"
#include "rendezvous/flight_recorder/flight_recorder.h"
#include "rendezvous/protocol/codec.h"

namespace ddp::launcher {
namespace {

using rendezvous::FlightRecorderMemory;

/// The kernel never returns a longer record (PRINTKRB_RECORD_MAX is 2048 + 1024).
constexpr std::size_t kRecord = 8192;
constexpr int kSlice = 256;  ///< records before other handlers run: about 0.2 ms
constexpr std::size_t kMaxErrorFile = rendezvous::kMaxAgentEvidence;
constexpr std::size_t kMaxSmallFile = 256u << 10;
/// A chatty driver repeats itself; the first lines suffice.
constexpr std::size_t kMaxLines = 8;
constexpr std::size_t kMaxVictims = 64;
constexpr std::size_t kMaxLine = 512;
/// Evidence on a slower disk is ignored.
constexpr std::chrono::seconds kReadTime{2};
/// The time for a disk to remove small files.
constexpr std::chrono::milliseconds kRemoveTime{200};
constexpr std::uint64_t kXidAge = 60'000'000;  ///< µs before the end of the attempt

/// Another user may have put a fifo at the path.
std::string read_small(const std::string& path, std::size_t limit) {
  return read_start(path, limit, O_NONBLOCK | O_NOCTTY);
}

/// The file that counts OOM kills of `pid`'s memory cgroup: version 1 if it has the controller, else version
/// 2. A v2 group without the controller is counted in the nearest ancestor that has it.
std::string memory_events_of(pid_t pid) {
  const std::string groups = read_small("/proc/" + std::to_string(pid) + "/cgroup", kMaxSmallFile);
  const std::string mounts = read_small("/proc/self/mountinfo", kMaxSmallFile);
  if (std::string v1 = find_cgroup(mounts, groups, "memory"); !v1.empty()) return v1 + "/memory.oom_control";
  std::string group = find_cgroup(mounts, groups, "");
  while (!group.empty()) {
    std::string file = group + "/memory.events";
    if (::access(file.c_str(), R_OK) == 0) return file;
    group.resize(group.rfind('/') == std::string::npos ? 0 : group.rfind('/'));
  }
  return {};
}

std::uint64_t kernel_now_us() {
  return static_cast<std::uint64_t>(read_clock(CLOCK_MONOTONIC_RAW).count()) / 1000;
}

}  // namespace

void EvidenceCollector::begin(std::uint32_t attempt, std::uint32_t first_rank,
                              std::vector<std::string> error_files, const WorkerProcesses& processes) {
  attempt_ = attempt;
  first_rank_ = first_rank;
  std::vector<std::string> read;
  for (std::size_t local = 0; local < error_files_.size(); ++local) {
    if (!processes.is_alive(static_cast<std::uint32_t>(local)))
      read.push_back(error_files_[local]);
    else if (local < error_files.size())
      error_files[local] = error_files_[local];
  }
  if (!read.empty()) spawn(executor_, remove(this, std::move(read)));
  error_files_ = std::move(error_files);
  ends_.clear();
  only_terminated_ = true;
  victims_.clear();
  xids_.clear();
  group_kills_ = machine_kills_ = {};
  a_worker_ = 0;
  kills_from_.reset();
  // Many machines let only root read the log, and containers often have none.
  kernel_log_.reset(::open("/dev/kmsg", O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (kernel_log_ && ::lseek(kernel_log_.get(), 0, SEEK_END) < 0) kernel_log_.reset();
  for (const auto& [local, process] : processes.all())
    worker_started(process.pid);
}

Awaitable<> EvidenceCollector::remove(EvidenceCollector* self, std::vector<std::string> files) {
  std::function<Result<>()> remove = [files = std::move(files)] {
    for (const std::string& file : files)
      ::unlink(file.c_str());
    return Result<>();
  };
  (void)co_await self->disk_.run(std::move(remove), Clock::now() + kRemoveTime);
}

void EvidenceCollector::worker_started(pid_t pid) {
  // Read later, not while other workers start: a machine may have thousands of mounts to read.
  if (std::exchange(a_worker_, pid) == 0) asio::post(executor_, [this] { find_memory_group(); });
}

void EvidenceCollector::find_memory_group() {
  group_kills_ = OomCounter::read(memory_events_of(a_worker_));
  machine_kills_ = OomCounter::read("/proc/vmstat");
}

EvidenceCollector::OomCounter EvidenceCollector::OomCounter::read(std::string file) {
  const auto start = file.empty() ? std::nullopt : parse_oom_kills(read_small(file, kMaxSmallFile));
  if (!start) return {};
  return {std::move(file), *start};
}

std::uint64_t EvidenceCollector::OomCounter::now() const {
  const auto value = file.empty() ? std::nullopt : parse_oom_kills(read_small(file, kMaxSmallFile));
  return std::max(value.value_or(start), start);
}

std::string EvidenceCollector::OomCounter::text() const {
  return " (oom_kill in " + file + " went from " + std::to_string(start) + " to " + std::to_string(now()) +
         ")";
}

void EvidenceCollector::worker_ended(std::uint32_t rank, pid_t pid, const ExitStatus& status) {
  const bool terminated = status.kind == ExitStatus::Kind::kSignaled && status.number == SIGTERM;
  if (status.success()) return;
  const bool ours = kills_from_ && Clock::now() >= *kills_from_;
  const bool killed = status.kind == ExitStatus::Kind::kSignaled && status.number == SIGKILL && !ours;
  const bool lost_child = status.kind == ExitStatus::Kind::kExited && status.number == 128 + SIGKILL && !ours;
  ends_.push_back({rank, pid, killed, lost_child, terminated});
  only_terminated_ = only_terminated_ && terminated;
}

void EvidenceCollector::kills_from(Clock::time_point time) {
  kills_from_ = std::min(kills_from_.value_or(time), time);
}

Awaitable<> EvidenceCollector::collect(SendEvidence send) {
  if (ends_.empty()) co_return;
  const std::uint64_t now = kernel_now_us();
  for (more_in_log_ = kernel_log_ && !only_terminated_; more_in_log_;) {
    read_kernel_log(now);
    if (more_in_log_) co_await asio::post(executor_, asio::use_awaitable);
  }
  kernel_log_.reset();
  std::map<std::uint32_t, std::string> errors = co_await read_error_files();
  std::vector<rendezvous::WorkerEvidence> evidence(ends_.size());
  if (!only_terminated_) report_oom(evidence);
  for (std::size_t i = 0; i < ends_.size(); ++i) {
    rendezvous::WorkerEvidence& one = evidence[i];
    one.attempt = attempt_;
    one.rank = ends_[i].rank;
    one.xid = xids_of(ends_[i]);
    one.error_json = std::move(errors[one.rank]);
    if (!one.oom.empty() || !one.xid.empty() || !one.error_json.empty()) send(one);
  }
  ends_.clear();
}

/// The error files of ended workers, by rank.
Awaitable<std::map<std::uint32_t, std::string>> EvidenceCollector::read_error_files() {
  std::map<std::uint32_t, std::string> paths;
  for (const AbnormalExit& end : ends_) {
    const std::size_t index = end.rank - first_rank_;
    if (index < error_files_.size()) paths[end.rank] = error_files_[index];
  }
  using Texts = std::map<std::uint32_t, std::string>;
  std::function<Result<Texts>()> read = [paths = std::move(paths)]() -> Result<Texts> {
    Texts texts;
    for (const auto& [rank, path] : paths)
      texts[rank] = read_small(path, kMaxErrorFile);
    return texts;
  };
  auto texts = co_await disk_.run(std::move(read), Clock::now() + kReadTime);
  co_return texts ? std::move(*texts) : Texts{};
}

/// Reads one slice of the new records.
void EvidenceCollector::read_kernel_log(std::uint64_t now_us) {
  std::array<char, kRecord> buffer;
  for (int count = 0; count < kSlice; ++count) {
    const ssize_t size = ::read(kernel_log_.get(), buffer.data(), buffer.size());
    // EPIPE: records were overwritten before this read; the next read continues with the oldest.
    if (size < 0 && (errno == EINTR || errno == EPIPE)) continue;
    if (size <= 0) {
      more_in_log_ = false;
      return;
    }
    auto line = parse_kernel_line({buffer.data(), static_cast<std::size_t>(size)});
    if (!line) continue;
    if (line->text.size() > kMaxLine) line->text.resize(kMaxLine);
    if (const auto victim = parse_oom_victim(line->text)) {
      add_victim(*victim, std::move(line->text));
    } else if (is_xid_line(line->text) && line->time_us + kXidAge >= now_us && xids_.size() < kMaxLines) {
      xids_.push_back(std::move(line->text));
    }
  }
}

/// The kernel reports one death in several lines; the last has the sizes.
void EvidenceCollector::add_victim(const OomVictim& victim, std::string line) {
  for (auto& [known, text] : victims_) {
    if (known.pid == victim.pid) {
      text = std::move(line);
      return;
    }
  }
  if (victims_.size() < kMaxVictims) victims_.emplace_back(victim, std::move(line));
}

/// The kernel log's text about this process; empty if it has none.
std::string EvidenceCollector::oom_in_log(pid_t pid) const {
  for (const auto& [victim, line] : victims_) {
    if (victim.pid != pid) continue;
    return std::string(victim.cgroup ? "the OOM killer ended it: its control group reached its memory limit"
                                     : "the OOM killer ended it: the machine ran out of memory") +
           " (kernel log: " + line + ")";
  }
  return {};
}

/// The driver's lines, except those that name another worker.
std::string EvidenceCollector::xids_of(const AbnormalExit& end) const {
  std::string lines;
  for (const std::string& line : xids_) {
    const bool anothers = std::any_of(ends_.begin(), ends_.end(), [&](const AbnormalExit& other) {
      return other.pid != end.pid && xid_names(line, other.pid);
    });
    if (!end.terminated && !anothers) lines += (lines.empty() ? "" : "\n") + line;
  }
  return lines;
}

/// The kernel log names the process, but the counters only say how many died. The group's are attributed, in
/// order, to workers that ended by a SIGKILL not sent by the agent, then to those that lost a child by one.
/// The rest were children of other workers. Kills elsewhere on the machine count for an exit 137, since the
/// child may have a group of its own (a container), and for a worker whose group has no counter.
void EvidenceCollector::report_oom(std::vector<rendezvous::WorkerEvidence>& evidence) const {
  std::uint64_t died = group_kills_.now() - group_kills_.start;
  const std::uint64_t died_anywhere = machine_kills_.now() - machine_kills_.start;
  const bool died_elsewhere = died_anywhere > died;
  for (std::size_t i = 0; i < ends_.size(); ++i) {
    evidence[i].oom = oom_in_log(ends_[i].pid);
    if (!evidence[i].oom.empty() && died > 0) --died;
  }
  const auto attribute = [&](auto fits, const std::string& text) {
    for (std::size_t i = 0; i < ends_.size() && died > 0; ++i) {
      if (!fits(ends_[i]) || !evidence[i].oom.empty()) continue;
      evidence[i].oom = text + group_kills_.text();
      --died;
    }
  };
  attribute([](const AbnormalExit& end) { return end.killed; }, "the OOM killer ended it");
  attribute([](const AbnormalExit& end) { return end.lost_child; },
            "the OOM killer ended a child of it, hence exit 137 (128 + SIGKILL)");
  attribute([](const AbnormalExit& end) { return !end.terminated; },
            "the OOM killer ended another process of its control group");
  for (std::size_t i = 0; i < ends_.size() && died_elsewhere; ++i) {
    const bool fits = ends_[i].lost_child || (ends_[i].killed && group_kills_.file.empty());
    if (fits && evidence[i].oom.empty())
      evidence[i].oom = "the OOM killer ended a process of this machine meanwhile" + machine_kills_.text();
  }
}

// ---- the flight recorders

Result<> FlightRecorderBoard::make_room(std::uint32_t workers) {
  if (workers <= room_) return {};
  if (!memory_) memory_.reset(::memfd_create("ddplaunch-collectives", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  // Pages are allocated on the first write. A worker that shrank the file would end the others by SIGBUS.
  if (!memory_ ||
      ::ftruncate(memory_.get(), static_cast<off_t>(FlightRecorderMemory::kStride) * workers) != 0 ||
      ::fcntl(memory_.get(), F_ADD_SEALS, F_SEAL_SHRINK) != 0)
    return system_error(errno, "make memory for the log of collectives");
  room_ = workers;
  return {};
}

std::string FlightRecorderBoard::path() const {
  if (room_ == 0) return {};
  return "/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(memory_.get());
}

std::string FlightRecorderBoard::text(std::uint32_t local_rank, std::uint32_t rank,
                                      std::uint32_t attempt) const {
  if (local_rank >= room_) return {};
  const off_t offset = static_cast<off_t>(FlightRecorderMemory::kStride) * local_rank;
  std::uint64_t magic = 0;
  if (::pread(memory_.get(), &magic, sizeof magic, offset) != sizeof magic ||
      magic != FlightRecorderMemory::kMagic)
    return {};
  const auto memory = std::make_unique<FlightRecorderMemory>();
  const ssize_t size = ::pread(memory_.get(), memory.get(), sizeof *memory, offset);
  if (size != static_cast<ssize_t>(sizeof *memory)) return {};
  const auto dump =
      rendezvous::read_collectives(*memory, rendezvous::kFinishedReported, rendezvous::kReported);
  if (!dump || dump->attempt != attempt || static_cast<std::uint32_t>(dump->rank) != rank) return {};
  return rendezvous::dump_text(*dump);
}

}  // namespace ddp::launcher
