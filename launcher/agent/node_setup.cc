#include "launcher/agent/node_setup.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <csignal>
#include <utility>
#include <vector>

#include "base/blocking_calls.h"
#include "base/files.h"
#include "base/program.h"
#include "base/text.h"
#include "base/unique_fd.h"
#include "launcher/keeper/process_tree.h"

namespace ddp::launcher {
namespace {

/// Variables of the shell itself, which it would refuse to set or would obey as settings.
constexpr std::array<std::string_view, 16> kOfTheShell = {
    "BASHOPTS", "BASH_VERSINFO", "DIRSTACK", "EUID", "FUNCNAME", "GROUPS",    "HISTCMD", "IFS",
    "LINENO",   "OPTARG",        "OPTIND",   "PPID", "RANDOM",   "SHELLOPTS", "SECONDS", "UID"};
/// Variables that a shell sets for each program that it starts, and for its own directory.
constexpr std::array<std::string_view, 4> kOfThisShell = {"_", "OLDPWD", "PWD", "SHLVL"};

template <std::size_t N>
bool among(const std::array<std::string_view, N>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool passes_a_shell(std::string_view name) {
  const bool word = std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return (c < 0x80 && std::isalnum(c) != 0) || c == '_';
  });
  return word && !name.empty() && std::isdigit(static_cast<unsigned char>(name.front())) == 0 &&
         !among(kOfTheShell, name) && !among(kOfThisShell, name);
}

std::string shell_word(std::string_view value) {
  std::string text = "'";
  for (const char c : value)
    text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + '\'';
}

void add_export(std::string& script, std::string_view name, std::string_view value) {
  script += "export " + std::string(name) + '=' + shell_word(value) + '\n';
}

}  // namespace

std::string setup_prelude(const EnvVars& forwarded, const EnvVars& explicit_vars) {
  EnvVars vars = forwarded;
  for (const auto& [name, value] : explicit_vars)
    set_env(vars, name, value);
  // In the C locale every byte is a character, so that no value can hide its closing quote. LC_ALL is
  // restored after the values; one of them may set it again.
  std::string script = "ddp_lc=${LC_ALL+x}${LC_ALL-}\nexport LC_ALL=C\n";
  for (const auto& [name, value] : vars) {
    if (name == "LC_ALL" || (name == "PATH" && !find_env(explicit_vars, "PATH"))) continue;
    if (passes_a_shell(name)) add_export(script, name, value);
  }
  if (const std::string* path = find_env(forwarded, "PATH"); path && !find_env(explicit_vars, "PATH")) {
    script += "ddp_path=$PATH\n";
    add_export(script, "PATH", *path);
    script +=
        "ddp_ifs=$IFS\nset -f\nIFS=:\n"
        "for ddp_d in $ddp_path; do\n"
        "  case \":$PATH:\" in *\":$ddp_d:\"*) ;; *) PATH=$PATH:$ddp_d ;; esac\n"
        "done\n"
        "IFS=$ddp_ifs\nset +f\nunset ddp_path ddp_ifs ddp_d\n";
  }
  if (const std::string* locale = find_env(vars, "LC_ALL")) {
    add_export(script, "LC_ALL", *locale);
  } else {
    script += "case $ddp_lc in x*) LC_ALL=${ddp_lc#x} ;; *) unset LC_ALL ;; esac\n";
  }
  return script + "unset ddp_lc\n";
}

std::string setup_command(std::size_t scripts, int first_fd) {
  // Uses the builtin printf, because PATH is set by the profile.
  const std::string mark = "command printf . >&" + std::to_string(first_fd) + '\n';
  std::string words = mark;
  for (std::size_t i = 0; i <= scripts; ++i) {
    // In `. FILE && ...` or `if . FILE` the shell would ignore `set -e` within the file.
    words += ". /proc/self/fd/" + std::to_string(first_fd + 1 + static_cast<int>(i)) +
             "\ncase $? in 0) ;; *) exit $? ;; esac\n" + mark;
  }
  return words + "command -p env -0 >&" + std::to_string(first_fd);
}

Result<EnvVars> setup_verdict(std::string_view dump, std::size_t scripts, const SetupEnd& end,
                              const EnvVars& before) {
  const std::size_t whole = scripts + 2;
  const std::size_t marks = std::min({dump.find_first_not_of('.'), dump.size(), whole});
  if (marks == 0) {
    return Error{
        ErrorCode::kRefused,
        "--setup did not start: the login shell that runs it " + end.how +
            " while it read the profile (/etc/profile, ~/.bash_profile, ~/.profile and the files that they "
            "read); run exec or exit there in interactive shells only" +
            end.last_lines};
  }
  std::string place;
  if (scripts > 1 && marks >= 2 && marks < whole)
    place = " in script " + std::to_string(marks - 1) + " of " + std::to_string(scripts);
  if (!end.success)
    return Error{ErrorCode::kRefused, "--setup failed: its shell " + end.how + place + end.last_lines};
  if (marks < whole) {
    return Error{ErrorCode::kRefused, "--setup ended its shell (exit 0)" + place +
                                          ", so its variables are lost; remove the exit or exec"};
  }
  return setup_result(dump.substr(whole), before);
}

EnvVars setup_result(std::string_view dump, const EnvVars& before) {
  EnvVars vars;
  while (!dump.empty()) {
    const std::size_t end = std::min(dump.find('\0'), dump.size());
    const std::string_view entry = dump.substr(0, end);
    dump.remove_prefix(std::min(end + 1, dump.size()));
    const std::size_t equals = entry.find('=');
    if (equals == 0 || equals == std::string_view::npos) continue;
    const std::string_view name = entry.substr(0, equals);
    if (!among(kOfThisShell, name) && !among(kOfTheShell, name))
      vars.emplace_back(name, entry.substr(equals + 1));
  }
  for (const auto& [name, value] : before) {
    if (!passes_a_shell(name) && !name.starts_with("BASH_FUNC_")) set_env(vars, name, value);
  }
  return vars;
}

void SetupOutput::finish_line() {
  if (open_.ends_with('\r')) open_.pop_back();
  // An error message of a shell: the path of the script is useless to a reader, but "line 2: " is not.
  const std::size_t colon = open_.find(": ");
  if (open_.starts_with("/proc/self/fd/") && colon != std::string::npos) open_.erase(0, colon + 2);
  DDP_REQUIRE(open_.size() <= kLongestLine + 1, open_.size());
  const bool cut = open_.size() > kLongestLine;
  open_.resize(std::min(open_.size(), kLongestLine));
  open_ = replace_unsafe(open_);
  if (cut) open_ += "...";
  ++count_;
  if (count_ <= kMostLines) line_(open_);
  if (count_ == kMostLines + 1)
    line_("(more than " + std::to_string(kMostLines) + " lines; the rest is not shown)");
  last_.push_back(std::move(open_));
  if (last_.size() > kKept) last_.pop_front();
  open_.clear();
}

void SetupOutput::feed(std::string_view bytes) {
  while (!bytes.empty()) {
    const std::size_t newline = bytes.find('\n');
    // One byte more than is shown indicates a cut line; its rest is not kept.
    const std::size_t room = kLongestLine + 1 - std::min(open_.size(), kLongestLine + 1);
    open_ += bytes.substr(0, newline).substr(0, room);
    if (newline == std::string_view::npos) return;
    finish_line();
    bytes.remove_prefix(newline + 1);
  }
}

void SetupOutput::end() {
  if (!open_.empty()) finish_line();
}

std::string SetupOutput::last_lines() const {
  if (last_.empty()) return "; it printed nothing";
  std::string text = "; its last lines:";
  for (const std::string& line : last_)
    text += "\n  " + line;
  return text;
}

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

/// Makes memory for the dump, the prelude and the scripts, in this order.
Result<std::vector<UniqueFd>> memories_for(const rendezvous::JobStart& job) {
  std::vector<std::string> texts = {std::string(), setup_prelude(job.env, job.explicit_env)};
  texts.insert(texts.end(), job.setup.begin(), job.setup.end());
  DDP_TRY(check_file_size(texts));
  std::vector<UniqueFd> memories;
  for (const std::string& text : texts) {
    memories.push_back(DDP_TRY(memory_file("ddplaunch-setup", text)));
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
  auto pipe = make_pipe("a pipe for --setup");
  if (!pipe) co_return pipe.error();
  auto& [reader, writer] = *pipe;
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
  const std::string dump = read_whole(memories->front().get(), kMostDump);
  if (dump.size() > kMostDump)
    co_return Error{ErrorCode::kRefused, "--setup left an environment of more than 16 MiB"};
  SetupEnd end;
  end.success = status && status->success();
  const bool killed = status && status->kind == ExitStatus::Kind::kSignaled;
  end.how = (killed ? "was " : "") + (status ? status->text() : std::string("was lost"));
  end.last_lines = running->output.last_lines();
  auto env = setup_verdict(dump, job.setup.size(), end, merged);
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
