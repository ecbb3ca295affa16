#include "launcher/agent/node_setup.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <utility>
#include <vector>

#include "base/asio.h"
#include "base/child_process.h"
#include "base/find_program.h"
#include "base/unique_fd.h"
#include "launcher/keeper/process_tree.h"

namespace ddp::launcher {
namespace {

using Clock = std::chrono::steady_clock;

/// The time from TERM to KILL; shorter than a master waits for an agent to leave.
constexpr std::chrono::seconds kGrace{2};
constexpr std::chrono::milliseconds kSetupKillTime{50};
/// The first descriptor for the shell: the dump, followed by the prelude and the scripts.
constexpr int kFirstFd = 3;
constexpr std::size_t kLastBytes = std::size_t{1} << 20;
constexpr std::size_t kMostDump = std::size_t{16} << 20;

/// `ulimit -f` limits memory files, too. The kernel kills a process that exceeds it, the agent or the shell.
Result<> check_file_size(const std::vector<std::string>& texts) {
  constexpr rlim_t kRoom = 64 * 1024;  // for what the scripts add to the environment
  rlim_t most = 0;
  for (const std::string& text : texts)
    most = std::max<rlim_t>(most, text.size());
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur >= most + kRoom) return {};
  return Error{ErrorCode::kRefused,
               "--setup needs files of " + std::to_string((most + kRoom) / 1024) +
                   " KiB, if only in memory, but this user may write no more than " +
                   std::to_string(limit.rlim_cur / 1024) +
                   " KiB (ulimit -f); raise fsize in /etc/security/limits.conf there, or in the shell that "
                   "starts ddplaunch"};
}

/// Makes anonymous memory that contains a text; its offset is at the beginning.
Result<UniqueFd> memory_with(const std::string& text) {
  UniqueFd memory(::memfd_create("ddplaunch-setup", MFD_CLOEXEC));
  if (!memory) return system_error(errno, "memfd_create");
  for (std::size_t at = 0; at < text.size();) {
    const ssize_t count = ::pwrite(memory.get(), text.data() + at, text.size() - at, static_cast<off_t>(at));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return system_error(errno, "the memory for a setup script");
    at += static_cast<std::size_t>(count);
  }
  return memory;
}

Result<std::string> text_of(int memory) {
  std::string text;
  std::array<char, 64 * 1024> buffer;
  for (;;) {
    const ssize_t count = ::pread(memory, buffer.data(), buffer.size(), static_cast<off_t>(text.size()));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return system_error(errno, "read the environment after --setup");
    if (count == 0) return text;
    text.append(buffer.data(), static_cast<std::size_t>(count));
    if (text.size() > kMostDump)
      return Error{ErrorCode::kRefused, "--setup left an environment of more than 16 MiB"};
  }
}

/// Makes memory for the dump, the prelude and the scripts, in this order.
Result<std::vector<UniqueFd>> memories_for(const rendezvous::JobStart& job) {
  std::vector<std::string> texts = {std::string(), setup_prelude(job.env, job.explicit_env)};
  texts.insert(texts.end(), job.setup.begin(), job.setup.end());
  if (auto fits = check_file_size(texts); !fits) return fits.error();
  std::vector<UniqueFd> memories;
  for (const std::string& text : texts) {
    auto memory = memory_with(text);
    if (!memory) return memory.error();
    memories.push_back(std::move(*memory));
  }
  return memories;
}

ChildSpec shell_for(const rendezvous::JobStart& job, const EnvVars& node_env,
                    const std::vector<UniqueFd>& memories) {
  ChildSpec spec;
  auto bash = find_program("bash", "/bin:/usr/bin:/usr/local/bin");
  spec.path = bash ? *bash : "/bin/sh";
  spec.argv = {bash ? "bash" : "sh", "-l", "-c", setup_command(job.setup.size(), kFirstFd)};
  EnvVars start_env = merge_env(node_env, {}, {});
  set_env(start_env, "DDPLAUNCH_JOB_ID", job.job_id);  // the mark that identifies its leftovers
  spec.env = env_entries(start_env);
  for (std::size_t i = 0; i < memories.size(); ++i)
    spec.inherit.push_back({memories[i].get(), kFirstFd + static_cast<int>(i)});
  spec.death_signal = SIGKILL;
  return spec;
}

}  // namespace

struct NodeSetup::Running {
  Running(const asio::any_io_executor& executor, SetupOutput::LineHandler line)
      : output(std::move(line)), out(executor), end(executor), timer(executor) {}
  ChildProcess child;
  SetupOutput output;
  asio::posix::stream_descriptor out;
  asio::posix::stream_descriptor end;
  asio::steady_timer timer;
  bool over = false;  ///< the shell has ended, and run() knows it
};

/// Programs that the scripts leave behind may hold the pipe, so it is read only until the shell has ended.
Awaitable<> NodeSetup::watch_end(std::shared_ptr<Running> running) {
  co_await until_readable(running->end);
  error_code ignored;
  if (!running->over) running->out.cancel(ignored);  // else listen() reads
}

Awaitable<Result<EnvVars>> NodeSetup::run(rendezvous::JobStart job, EnvVars node_env, EnvVars merged,
                                          std::string cwd, SetupOutput::LineHandler line) {
  auto memories = memories_for(job);
  if (!memories) co_return memories.error();
  ChildSpec spec = shell_for(job, node_env, *memories);
  spec.cwd = std::move(cwd);
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) co_return system_error(errno, "a pipe for --setup");
  UniqueFd reader(ends[0]);
  UniqueFd writer(ends[1]);
  spec.out = spec.err = writer.get();
  std::vector<ChildSpec> specs;
  specs.push_back(std::move(spec));
  if (!pool_) pool_ = std::make_unique<SpawnPool>(spawn_threads(1));
  starting_ = true;
  auto started = co_await spawn_off_loop(executor_, pool_.get(), std::move(specs));
  starting_ = false;
  writer.reset();
  auto& child = started.front();
  if (!child) co_return child.error();

  const auto running = std::make_shared<Running>(executor_, std::move(line));
  running_ = running;
  running->child = std::move(*child);
  running->out.assign(reader.release());
  running->end.assign(::fcntl(running->child.end_fd(), F_DUPFD_CLOEXEC, 0));
  if (stopped_) stop();
  asio::co_spawn(executor_, watch_end(running), asio::detached);  // ends with the shell
  std::array<char, 8192> chunk;
  while (!running->child.peek()) {
    const auto [error, count] = co_await running->out.async_read_some(asio::buffer(chunk), kUseTuple);
    running->output.feed({chunk.data(), count});
    // The pipe has ended, or the read was cancelled because the shell has ended.
    if (error) co_await until_readable(running->end);
  }
  running->over = true;
  error_code empty;
  running->out.non_blocking(true, empty);
  // A program that writes for ever is read only up to this limit.
  for (std::size_t left = kLastBytes; !empty && left >= chunk.size(); left -= chunk.size())
    running->output.feed({chunk.data(), running->out.read_some(asio::buffer(chunk), empty)});
  running->output.end();
  running->timer.cancel();
  const auto status = running->child.try_wait();
  running_.reset();
  if (stopped_) co_return Error{ErrorCode::kCancelled, "stopped while --setup was running"};
  auto dump = text_of(memories->front().get());
  if (!dump) co_return dump.error();
  SetupEnd end;
  end.success = status && status->success();
  const bool killed = status && status->kind == ExitStatus::Kind::kSignaled;
  end.how = (killed ? "was " : "") + (status ? status->text() : std::string("was lost"));
  end.last_lines = running->output.last_lines();
  auto env = setup_verdict(*dump, job.setup.size(), end, merged);
  if (env) running_ = running;  // for listen()
  co_return env;
}

Awaitable<> NodeSetup::listen() {
  const std::shared_ptr<Running> running = running_;
  std::array<char, 8192> chunk;
  for (bool open = running != nullptr; open && !stopped_;) {
    const auto [error, count] = co_await running->out.async_read_some(asio::buffer(chunk), kUseTuple);
    running->output.feed({chunk.data(), count});
    open = !error;
  }
  if (running) running->output.end();
}

void NodeSetup::stop() {
  stopped_ = true;
  if (starting_) kill_own_tree({}, kSetupKillTime);  // a disk may block it
  if (!running_) return;
  const std::shared_ptr<Running> running = running_;
  if (!running->child.running()) {
    error_code ignored;
    running->out.cancel(ignored);  // ends listen(); the pipe stays open while this object lives
    return;
  }
  (void)running->child.send_group_signal(SIGTERM);
  running->timer.expires_after(kGrace);
  running->timer.async_wait([running](const error_code& cancelled) {
    if (cancelled || !running->child.running()) return;
    kill_own_tree({}, kSetupKillTime);
    (void)running->child.send_group_signal(SIGKILL);
  });
}

}  // namespace ddp::launcher
