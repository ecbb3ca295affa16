#include "launcher/agent/usage_sampler.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <optional>
#include <utility>

#include "base/clock.h"
#include "base/files.h"
#include "base/program.h"
#include "base/text.h"
#include "launcher/inspection/process_inspection.h"
#include "launcher/keeper/process_table.h"

namespace ddp::launcher {
namespace {

using Clock = std::chrono::steady_clock;

/// The first rates come soon, so that a viewer need not wait for them.
constexpr std::chrono::seconds kFirstPeriod{1};
constexpr std::chrono::seconds kPeriod{5};
/// A walk through /proc costs 10 to 20 µs for each process of the machine.
constexpr int kSamplesPerWalk = 6;
constexpr std::size_t kMostText = 256u << 10;
constexpr std::uint64_t kInfinibandUnit = 4;  ///< port_rcv_data and port_xmit_data count in units of 4 bytes

std::chrono::nanoseconds clock_tick() {
  return std::chrono::nanoseconds(1'000'000'000 / ::sysconf(_SC_CLK_TCK));
}

/// Adds the devices that have hardware. A bridge or a volume counts the same bytes again. In a container no
/// device may show its hardware: then all count.
ByteCounters sum_of(const std::map<std::string, ByteCounters>& devices, const std::string& directory) {
  ByteCounters sum, all;
  bool any = false;
  for (const auto& [name, bytes] : devices) {
    all.in += bytes.in, all.out += bytes.out;
    if (::access((directory + '/' + name + "/device").c_str(), F_OK) != 0) continue;
    any = true;
    sum.in += bytes.in, sum.out += bytes.out;
  }
  return any ? sum : all;
}

std::uint64_t number_of(const std::string& file) {
  return leading_number<std::uint64_t>(first_line(file)).value_or(0);
}

ByteCounters infiniband_bytes(const std::string& root) {
  ByteCounters sum;
  for (const std::filesystem::path& adapter : list_directory(root + "/sys/class/infiniband"))
    for (const std::filesystem::path& port : list_directory(adapter / "ports")) {
      sum.in += number_of(port / "counters/port_rcv_data") * kInfinibandUnit;
      sum.out += number_of(port / "counters/port_xmit_data") * kInfinibandUnit;
    }
  return sum;
}

}  // namespace

UsageCounters UsageReader::read() {
  UsageCounters counters;
  read_proc_stat(read_start(root_ + "/proc/stat", kMostText), clock_tick(), counters);
  read_meminfo(read_start(root_ + "/proc/meminfo", kMostText), counters);
  counters.memory_stall = read_pressure(read_start(root_ + "/proc/pressure/memory", kMostText));
  const std::string interfaces = read_start(root_ + "/proc/net/dev", kMostText);
  counters.network = sum_of(read_net_dev(interfaces), root_ + "/sys/class/net");
  counters.network_errors = read_net_errors(interfaces);
  counters.disk =
      sum_of(read_diskstats(read_start(root_ + "/proc/diskstats", kMostText)), root_ + "/sys/block");
  counters.infiniband = infiniband_bytes(root_);
  read_job(counters);
  counters.at = steady_now();
  return counters;
}

std::vector<pid_t> UsageReader::processes() {
  std::vector<pid_t> pids;
  if (!group_.empty()) {
    const std::string text = read_start(group_ + "/cgroup.procs", kMostText);
    for (const std::string_view word : split_at_blanks(text))
      pids.push_back(parse_number<pid_t>(word).value_or(0));
    return pids;
  }
  if (walk_in_-- > 0) return known_;
  walk_in_ = kSamplesPerWalk - 1;
  for (const ProcessInfo& process : ProcessForest().tree(::getpid()))
    if (process.pid != ::getpid()) pids.push_back(process.pid);
  return known_ = pids;
}

/// A control group of version 2 counts its CPU time without any controller, and its memory with that of the
/// memory. Only what it does not count is summed over the processes.
void UsageReader::read_job(UsageCounters& counters) {
  std::optional<std::uint64_t> memory;
  if (!group_.empty()) {
    counters.group_cpu = read_group_cpu(read_start(group_ + "/cpu.stat", kMostText));
    memory = parse_number<std::uint64_t>(first_line(group_ + "/memory.current"));
  }
  counters.job_memory = memory.value_or(0);
  const bool counts_cpu = counters.group_cpu > std::chrono::nanoseconds(0);
  if (counts_cpu && memory) return;
  for (const pid_t pid : processes()) {
    if (!memory) {
      const std::string status = read_start("/proc/" + std::to_string(pid) + "/status", kMostText);
      counters.job_memory += read_private_memory(status);
    }
    if (counts_cpu) continue;
    if (const auto info = read_stat(pid))
      counters.process_cpu[{pid, info->started}] = clock_tick() * static_cast<std::int64_t>(info->own_cpu);
  }
}

UsageSampler::UsageSampler(asio::any_io_executor executor, std::string directory, SendSample send)
    : executor_(executor),
      program_(companion_program(directory, "ddplaunch-nvml")),
      send_(std::move(send)),
      helper_out_(executor),
      timer_(executor),
      tasks_(executor) {}

void UsageSampler::begin(std::string group, std::vector<std::string> env, std::vector<std::uint32_t> gpus,
                         bool has_gpus) {
  stopped_ = false;
  calls_ = std::make_unique<BlockingCalls>(executor_, 1);
  gpus_ = GpuSampleLines(std::move(gpus));
  if (has_gpus) tasks_.start(watch_gpus(this, std::move(env)));
  tasks_.start(sample(this, std::move(group)));
}

void UsageSampler::stop() {
  if (std::exchange(stopped_, true)) return;
  timer_.cancel();
  calls_->stop();
  if (helper_.running()) (void)helper_.send_group_signal(SIGKILL);
  error_code ignored;
  helper_out_.cancel(ignored);
}

std::vector<pid_t> UsageSampler::pids() const {
  return helper_.running() ? std::vector<pid_t>{helper_.pid()} : std::vector<pid_t>();
}

Awaitable<> UsageSampler::sample(UsageSampler* self, std::string group) {
  const auto reader = std::make_shared<UsageReader>(std::move(group));
  const std::function<Result<UsageCounters>()> read = [reader] {
    return Result<UsageCounters>(reader->read());
  };
  std::optional<UsageCounters> before;
  for (auto wait = std::chrono::seconds(0); !self->stopped_;) {
    self->timer_.expires_after(wait);
    co_await self->timer_.async_wait(kUseTuple);
    if (self->stopped_) co_return;
    auto now = co_await self->calls_->run<UsageCounters>(read, Clock::time_point::max());
    if (self->stopped_) co_return;
    wait = before ? kPeriod : kFirstPeriod;
    if (!now) continue;  // no thread could be started
    if (before) {
      rendezvous::NodeSample sample = usage_between(*before, *now);
      sample.gpus = self->gpus_.gpus();
      self->send_(sample);
    }
    before = std::move(*now);
  }
}

// ---- GPUs

/// Blocks on the disk of the program.
Result<UsageSampler::Helper> UsageSampler::start_helper(const std::string& program,
                                                        const std::vector<std::string>& env) {
  if (::access(program.c_str(), X_OK) != 0) return system_error(errno, program);
  if (const std::string why = distrust_companion(program); !why.empty())
    return Error{ErrorCode::kExec, program + " is not executed: " + why, EPERM};
  auto [reader, writer] = DDP_TRY(make_pipe("pipe"));
  Helper helper{{}, std::move(reader)};
  ChildSpec spec;
  spec.path = program;
  spec.argv = {program, "--samples"};
  spec.env = env;
  spec.cwd = "/";
  spec.out = writer.get();
  helper.child = DDP_TRY(spawn(spec));
  return helper;
}

/// Reads what the driver says until its program ends: at once where there is no driver, else with the
/// attempt. Without a death signal, which would follow a thread that may end earlier: it ends with its
/// reader.
Awaitable<> UsageSampler::watch_gpus(UsageSampler* self, std::vector<std::string> env) {
  const std::function<Result<Helper>()> start = [program = self->program_, env = std::move(env)] {
    return start_helper(program, env);
  };
  self->starting_ = true;
  auto started = co_await self->calls_->run<Helper>(start, Clock::time_point::max());
  self->starting_ = false;
  if (!started || self->stopped_) co_return;
  self->helper_ = std::move(started->child);
  self->helper_out_.assign(started->out.release());
  std::array<char, 4096> chunk;
  for (;;) {
    const auto [error, count] = co_await self->helper_out_.async_read_some(asio::buffer(chunk), kUseTuple);
    if (error || self->stopped_) break;
    self->gpus_.add({chunk.data(), count});
  }
  self->gpus_ = GpuSampleLines();
  error_code ignored;
  self->helper_out_.close(ignored);
  if (self->helper_.running()) (void)self->helper_.send_group_signal(SIGKILL);
  // A process that waits for the driver does not die at once. It is left to the end of the attempt.
  if (!self->helper_.try_wait()) {
    asio::posix::stream_descriptor end(self->executor_, ::fcntl(self->helper_.end_fd(), F_DUPFD_CLOEXEC, 0));
    asio::steady_timer limit(self->executor_, kFirstPeriod);
    const auto give_up = [&end](const error_code& cancelled) {
      error_code unused;
      if (!cancelled) end.cancel(unused);
    };
    limit.async_wait(give_up);
    co_await until_readable(end);
    limit.cancel();
    if (!self->helper_.try_wait()) self->helper_.abandon();
  }
  self->helper_ = ChildProcess();
}

}  // namespace ddp::launcher
