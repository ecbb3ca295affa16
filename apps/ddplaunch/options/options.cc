#include "apps/ddplaunch/options/options.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <climits>
#include <ctime>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "apps/ddplaunch/options/job_options.h"
#include "apps/ddplaunch/options/option_sources.h"
#include "base/child_process.h"
#include "base/crypto.h"
#include "base/files.h"
#include "base/program.h"
#include "base/text.h"
#include "base/unique_fd.h"
#include "launcher/control/history_files.h"
#include "launcher/job/worker_env.h"

namespace ddp {

// ---- the context of this process

namespace {

constexpr std::size_t kMaxFile = std::size_t{16} << 20;  ///< a longer file was not written by a person

Result<std::string> read_all(int fd, const std::string& name) {
  std::string text;
  std::array<char, 64 * 1024> buffer;
  while (true) {
    const ssize_t got = ::read(fd, buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return system_error(errno, name);
    if (got == 0) return text;
    text.append(buffer.data(), static_cast<std::size_t>(got));
    if (text.size() > kMaxFile) return system_error(EFBIG, name);
  }
}

Result<std::string> read_file(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY));
  if (!file) return system_error(errno, path);
  return read_all(file.get(), path);
}

Result<std::string> read_own_file(const std::string& path) {
  struct stat found {};
  // A user who may not search a directory, such as another user's home below su, has no file there.
  if (::lstat(path.c_str(), &found) != 0) return system_error(errno == EACCES ? ENOENT : errno, path);
  const auto target = DDP_TRY(follow_trusted_links(path));
  if (const std::string reason = distrust_parent(target.substr(0, target.rfind('/'))); !reason.empty())
    return Error{ErrorCode::kSystem, path + ": " + reason, EPERM};
  const UniqueFd file(::open(target.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NOFOLLOW | O_NONBLOCK));
  if (!file) return system_error(errno, path);
  if (const std::string reason = distrust_file(file.get()); !reason.empty())
    return Error{ErrorCode::kSystem, path + ": it " + reason, EPERM};
  return read_all(file.get(), path);
}

Result<> can_write(const std::string& path) {
  DDP_TRY(follow_trusted_links(path));
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0) {
    if (S_ISDIR(status.st_mode)) return system_error(EISDIR, path);
    if (::access(path.c_str(), W_OK) != 0) return system_error(errno, path);
    return {};
  }
  const std::string directory = path.substr(0, std::max<std::size_t>(path.rfind('/'), 1));
  if (::stat(directory.c_str(), &status) != 0) return system_error(errno, directory);
  if (!S_ISDIR(status.st_mode)) return system_error(ENOTDIR, directory);
  if (::access(directory.c_str(), W_OK | X_OK) != 0) return system_error(errno, directory);
  return {};
}

// 20261121-034500-ab12cd: the local time for people, and six digits for two starts within one second.
std::string new_job_id() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::localtime_r(&now, &parts);
  char time_text[32];
  std::strftime(time_text, sizeof time_text, "%Y%m%d-%H%M%S", &parts);
  const auto random = random_text(3);
  return std::string(time_text) + '-' + (random ? *random : format_text("%06x", ::getpid() & 0xffffff));
}

bool is_pipe_or_file(int fd) {
  struct stat status {};
  return ::fstat(fd, &status) == 0 &&
         (S_ISFIFO(status.st_mode) || S_ISREG(status.st_mode) || S_ISSOCK(status.st_mode));
}

}  // namespace

ProcessContext read_process_context() {
  ProcessContext result;
  result.env = launcher::split_env(own_environment());
  std::error_code unknown;
  result.cwd = std::filesystem::current_path(unknown);
  if (result.cwd.size() >= PATH_MAX) result.cwd.clear();  // no system call takes it
  result.new_job_id = new_job_id();
  result.host_name = host_name();
  result.user_id = ::geteuid();
  result.stdin_has_data = is_pipe_or_file(STDIN_FILENO);
  result.read_file = read_file;
  result.read_own_file = read_own_file;
  result.read_stdin = [] { return read_all(STDIN_FILENO, "standard input"); };
  result.can_write = can_write;
  result.read_host_history = [](const std::string& directory) {
    return launcher::read_host_history(
        directory, std::chrono::floor<std::chrono::seconds>(std::chrono::system_clock::now()));
  };
  return result;
}

// ---- from arguments to a job

namespace {

using launcher::JobSpec;
using launcher::WorkerCommand;

constexpr char kNoWorker[] = "no worker given; usage: ddplaunch [options] WORKER [arguments of the worker]";

/// Further hosts of the store. One message names them beside the nodes' own addresses.
constexpr std::size_t kMaxStoreAllow = 1000;

void read_start(JobOptions& options, const ProcessContext& context, Diagnostics& diagnostics) {
  JobSpec& spec = options.job.spec;
  if (options.given("--ssh-config") && spec.ssh_config != "none") {
    if (auto text = context.read_file(spec.ssh_config); !text)
      diagnostics.fail("--ssh-config " + text.error().text);
  }
  if (spec.store_allow.size() > kMaxStoreAllow)
    diagnostics.fail("--store-allow is given ", spec.store_allow.size(), " times; at most ", kMaxStoreAllow,
                     " are possible; name networks (10.1.0.0/16)");
  spec.push = !options.given("--no-push") && !spec.per_node;
  spec.master_port = options.written.master_port.value_or(0);
  const auto [low, high] = spec.port_range.value_or(std::pair<std::uint16_t, std::uint16_t>(0, kMaxPort));
  if (spec.master_port != 0 && (spec.master_port < low || spec.master_port > high))
    diagnostics.fail("--master-port ", spec.master_port, " is not in --port-range ", low, '-', high,
                     "; omit one of them, or use matching values");
  for (remote::Host& host : spec.hosts) {
    if (host.wrapper.empty()) host.wrapper = options.written.wrapper;
  }
}

/// Options that a worker hardly has itself.
constexpr std::string_view kOnlyOurs[] = {"--nproc-per-node", "--nnodes",       "--hostfile",
                                          "--max-restarts",   "--rdzv-backend", "--rdzv-endpoint"};

/// Notes ddplaunch's own options behind the worker, because the user may have meant them for ddplaunch. `--`
/// before or behind the worker shows that they are meant for it.
void note_worker_options(const CommandLine& line, Diagnostics& diagnostics) {
  const std::vector<std::string>& words = line.worker;
  if (line.separated) return;
  std::vector<std::string> found;
  for (auto word = words.begin() + 1; word != words.end() && *word != "--"; ++word) {
    std::string name = word->substr(0, word->find('='));
    std::replace(name.begin(), name.end(), '_', '-');
    if (std::ranges::count(kOnlyOurs, name) > 0 && std::ranges::count(line.given, name) == 0)
      found.push_back(std::move(name));
  }
  if (found.empty()) return;
  diagnostics.note(join(found, ", "), found.size() == 1 ? " goes to " : " go to ", words.front(),
                   ": all words behind the worker belong to it; put options of ddplaunch before ",
                   words.front());
}

// Reports words of which another launcher, or another order, would make something else. `--` before the
// worker, or before the words, shows that they belong to it.
void check_worker_words(const CommandLine& line, bool module, Diagnostics& diagnostics) {
  const std::vector<std::string>& words = line.worker;
  const std::string& first = words.front();
  if (line.separated) return;
  if (!module && !line.given.empty() && find_verb(words) != nullptr) {
    diagnostics.fail("a verb comes first: ddplaunch " + first +
                     " [options]; a program of this name runs with " + "`ddplaunch [options] -- " + first +
                     '`');
  }
  // From a page or a chat that beautified the command line: en dash, em dash, minus sign.
  for (const std::string_view dash : {"\u2013", "\u2014", "\u2212"}) {
    if (first.starts_with(dash))
      return diagnostics.fail("the worker " + first +
                              " begins with a dash that is not the - of options; type it again" +
                              ", or write -- before a program of this name");
  }
  if (!invisible_hint(first).empty())
    return diagnostics.fail("the worker " + first +
                            ": type it again, or write -- before a program of this name");
  constexpr std::string_view kOfMpirun[] = {"-n", "-np", "--np", "-c", "--n", "-host", "--host", "-H", "-x"};
  for (std::size_t i = 1; i + 1 < words.size() && words[i] != "--"; ++i) {
    // A value of the worker's own option is a colon, too: `--sep : --epochs 3`, `cut -d : -f 1 FILE`.
    const bool is_value = words[i - 1].starts_with('-') && std::ranges::count(kOfMpirun, words[i + 1]) == 0;
    if (words[i] == ":" && !is_value)
      return diagnostics.fail(
          "the word : begins another program in mpirun, and ddplaunch has one worker for all ranks; start a "
          "script that chooses by RANK; if the : belongs to " +
          first + ", write -- before " + first);
  }
}

void read_command(JobOptions& options, Diagnostics& diagnostics) {
  const CommandLine& line = options.line;
  WorkerCommand& command = options.job.spec.command;
  if (line.worker.empty()) {
    // After an unknown option the worker is indistinguishable from the option's value.
    if (line.scanned_all && options.job.verb == Verb::kRun)
      diagnostics.fail(options.written.job_file.empty() ? kNoWorker
                                                        : "no worker given; the job file has none either");
    return;
  }
  options.job.worker_given = true;
  note_worker_options(line, diagnostics);
  check_worker_words(line, options.given("--module"), diagnostics);
  command.argv = line.worker;
  const std::string& first = line.worker.front();
  if (first.empty()) return diagnostics.fail("the worker's name is empty");
  if (options.given("--module")) {
    command.kind = WorkerCommand::Kind::kModule;
  } else if (first == "train") {
    command.kind = WorkerCommand::Kind::kTrain;
    command.argv.erase(command.argv.begin());
  } else if (first.ends_with(".py") && !options.given("--no-python")) {
    command.kind = WorkerCommand::Kind::kPython;
  }
  const bool python =
      command.kind == WorkerCommand::Kind::kModule || command.kind == WorkerCommand::Kind::kPython;
  if (python || !options.given("--python")) return;
  diagnostics.note("--python has no effect: " + first + " is started as it is");
  command.python.clear();
}

void read_worker(JobOptions& options, const ProcessContext& context, Diagnostics& diagnostics) {
  JobSpec& spec = options.job.spec;
  spec.chdir_given = options.given("--chdir");
  if (!spec.chdir_given) spec.chdir = context.cwd;
  if (!spec.chdir.starts_with('/')) {
    diagnostics.fail(
        "the current directory is unknown (was it deleted?); change to another one, or give --chdir /DIR");
  }
  const char* const hosts_option = options.written.hostfile == "-"     ? "--hostfile"
                                   : options.written.hosts_from == "-" ? "--hosts-from"
                                                                       : nullptr;
  spec.stdin_to_rank0 =
      options.written.stdin_to_rank0.value_or(context.stdin_has_data && hosts_option == nullptr);
  if (hosts_option != nullptr && spec.stdin_to_rank0) {
    diagnostics.fail("--stdin 0 cannot be used with ", hosts_option, " -, which reads standard input");
  }
}

void read_failure(JobOptions& options, const ProcessContext& context, Diagnostics& diagnostics) {
  JobSpec& spec = options.job.spec;
  // One option sets both: a given time means how long the workers need.
  if (options.given("--stop-grace")) spec.failure_grace = spec.stop_grace;
  // A rank in a collective of NCCL waits for ever for a peer that hangs: ddplaunch.elastic turns NCCL's own
  // time-out off.
  if (!options.given("--hang-timeout") && (spec.max_restarts > 0 || spec.scale_up_now)) {
    spec.hang_timeout = launcher::kElasticHang;
    spec.hang_by_steps = true;
  }
  // Somebody types what rank 0 reads, and may be thinking.
  if (options.written.stdin_to_rank0.value_or(false) && !options.given("--report-stalls"))
    spec.report_stalls = std::chrono::milliseconds(0);
  const std::string report = spec.report_path;
  if (report.empty() || report == launcher::kReportToStdout) return;
  spec.report_path = absolute_path(report, context.cwd);
  if (const auto writable = context.can_write(spec.report_path); !writable)
    diagnostics.fail("--report " + report + " cannot be written: " + writable.error().text);
}

void read_job(JobOptions& options, const ProcessContext& context, Diagnostics& diagnostics) {
  JobSpec& spec = options.job.spec;
  const bool named = options.given("--job-id");
  if (!named) spec.job_id = context.new_job_id;
  // A script or a scheduler may use the same id again, and each run needs its own files.
  const std::string run = spec.job_id + (named ? "." + context.new_job_id : "");
  // torchrun's id names a meeting. Scripts have a fixed one, and their jobs may run at once.
  const bool of_torchrun = std::ranges::count(options.line.given, "--rdzv-id") > 0;
  options.job.registration.claims_id = named && !of_torchrun;
  options.job.registration.directories = jobs_directories(context);
  options.job.registration.name = run;
  options.job.registration.cwd = context.cwd;
  const std::string name = options.given("--job-dir") ? spec.job_id : run;
  if (!spec.output.log_dir.empty()) spec.output.log_dir += '/' + name;
  if (std::string& events = spec.output.tensorboard; !events.empty()) {
    // A directory that is missing is made.
    if (const auto writable = context.can_write(events + "/file");
        !writable && writable.error().sys != ENOENT)
      diagnostics.fail("--tensorboard " + writable.error().text);
    // TensorBoard reads the files of a directory in the order of their names, so a later run of an id goes
    // on.
    events += '/' + spec.job_id + "/events.out.tfevents." + context.new_job_id;
  }
  if (options.given("--job-dir")) return;
  const std::vector<std::string>& directories = options.job.registration.directories;
  spec.fallback_job_dir = directories.back() + '/' + name;
  const bool joins = spec.per_node && spec.per_node->rank.value_or(0) != 0;
  if (directories.size() > 1) {
    spec.job_dir = directories.front() + '/' + name;
  } else if (options.job.verb == Verb::kRun && !joins) {  // the others write no files
    const bool unset = context.variable("HOME").empty();
    diagnostics.note(unset ? "HOME is not set" : "HOME is not an absolute path", "; the job's files are in ",
                     spec.fallback_job_dir);
    spec.job_dir = spec.fallback_job_dir;
  }
}

/// A detached job has no terminal. A forwarded SSH agent ends with the login.
void read_detach(JobOptions& options, const ProcessContext& context, Diagnostics& diagnostics) {
  if (!options.job.detach) return;
  JobSpec& spec = options.job.spec;
  spec.stdin_to_rank0 = false;
  const bool forwarded = launcher::find_env(context.env, "SSH_CONNECTION") != nullptr &&
                         launcher::find_env(context.env, "SSH_AUTH_SOCK") != nullptr;
  if (forwarded && spec.launcher == launcher::LauncherKind::kSsh) {
    diagnostics.note(
        "--detach: keys of a forwarded SSH agent are gone after a logout; a host that is lost then cannot be "
        "reached again");
  }
}

/// `ddplaunch run FILE …` is `ddplaunch --job-file FILE …`; options may stand before FILE, too. `args` are
/// those behind the verb. Returns false if there is no FILE.
bool read_run(std::vector<std::string>& args, const OptionTable& table, Diagnostics& diagnostics) {
  Diagnostics ignored;  // of the first scan; the second one reports its errors
  const CommandLine line = scan_command_line(args, table, ignored);
  constexpr std::string_view kTexts[] = {"-h", "--help", "-V", "--version"};
  const bool asks_text = std::ranges::any_of(
      line.options, [&](const GivenOption& option) { return std::ranges::count(kTexts, option.name) > 0; });
  if (!line.scanned_all || (line.worker.empty() && asks_text)) return true;
  const std::string file = line.worker.empty() ? "" : line.worker.front();
  if (file.empty()) {
    diagnostics.fail("run needs a job file: ddplaunch run JOB.yaml");
  } else if (file == "train" || file.ends_with(".py")) {
    diagnostics.fail("run expects a job file, in YAML; to start " + file + " omit run");
  } else {
    args.erase(args.end() - static_cast<std::ptrdiff_t>(line.worker.size()));
    args.insert(args.begin(), "--job-file=" + file);
    return true;
  }
  return false;
}

/// Returns the options that name the hosts and the way to them. Other options may hold secrets of the
/// workers, such as the text of --setup, and these arguments are kept in a file.
std::vector<std::string> host_arguments(const JobOptions& options) {
  OptionSource about_hosts = options.sources;
  std::erase_if(about_hosts, [&](const GivenOption& given) {
    const std::string& group = options.table.find(given.name)->group;
    return group != "Hosts" && group != "Start";
  });
  return option_words(about_hosts, options.table);
}

bool has_word(const std::string& text, const std::string& word) {
  constexpr std::string_view kBegins = " (\"'", kEnds = " ,;:)\"'";
  for (std::size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) {
    const std::size_t end = at + word.size();
    if ((at == 0 || kBegins.find(text[at - 1]) != kBegins.npos) &&
        (end == text.size() || kEnds.find(text[end]) != kEnds.npos))
      return true;
  }
  return false;
}

/// Says where the options of the errors are given, if this is in a file. Of a repeated option, only the
/// values that an error names are listed, or all if it names none.
void add_origins(const OptionSource& sources, Diagnostics& diagnostics) {
  for (const GivenOption& option : sources) {
    const auto names_it = [&](const std::string& error) {
      const auto names_value = [&](const GivenOption& other) {
        const std::string value =
            other.value.substr(0, other.name == "--env" ? other.value.find('=') : std::string::npos);
        return other.name == option.name && !value.empty() && has_word(error, value);
      };
      return has_word(error, option.name) &&
             (names_value(option) || std::ranges::none_of(sources, names_value));
    };
    if (option.in_file && std::ranges::any_of(diagnostics.errors, names_it))
      diagnostics.advice.push_back(option.origin + ": " + option.name + " is given here");
  }
}

}  // namespace

ParsedOptions parse_options(const std::vector<std::string>& arguments, const ProcessContext& context) {
  Diagnostics diagnostics;
  if (arguments.empty()) {
    diagnostics.fail(kNoWorker);
    diagnostics.fail("example: ddplaunch --nproc-per-node 2 train (the bundled trainer; or your train.py)");
    diagnostics.fail("ddplaunch --help shows what it can do");
    return BadUsage{diagnostics.errors};
  }
  std::vector<std::string> args = arguments;
  JobOptions options(context.cwd);
  RunJob& job = options.job;
  const VerbRow* const verb = find_verb(args);
  if (verb != nullptr) {
    job.verb = verb->verb;
    args.erase(args.begin());
    if (job.verb == Verb::kRun && !read_run(args, options.table, diagnostics))
      return BadUsage{diagnostics.errors};
  }
  read_sources(args, context, options, diagnostics);
  if (options.given("--help")) {
    const bool all = options.line.worker == std::vector<std::string>{"all"};
    return PrintText{verb != nullptr ? verb_help(options.table, job.verb)
                     : all           ? options.table.help()
                                     : brief_help(options.table),
                     {}};
  }
  if (options.given("--version")) return PrintText{version_text(), {}};

  const bool nodes_known = read_node_options(options, context, diagnostics);
  if (!job.spec.per_node && nodes_known) read_scheduler(options, context, diagnostics);
  for (const std::string& error : options.broken_rules())
    diagnostics.fail(error);
  // Without the nodes, missing hosts would be a consequence.
  if (nodes_known) read_host_options(options, context, diagnostics);
  note_host_history(options, diagnostics);
  read_start(options, context, diagnostics);
  check_daemon_hosts(job.spec, diagnostics);
  read_command(options, diagnostics);
  read_env_options(options, context, diagnostics);
  read_worker(options, context, diagnostics);
  read_failure(options, context, diagnostics);
  check_output_options(options, diagnostics);
  read_job(options, context, diagnostics);
  add_origins(options.sources, diagnostics);
  read_detach(options, context, diagnostics);
  if (!diagnostics.errors.empty()) return BadUsage{diagnostics.all_errors()};
  if (options.given("--dry-run"))
    return PrintText{
        job_plan_text(job.spec) + origins_text(options.sources, options.table, options.line.worker_origin),
        std::move(diagnostics.notes)};
  job.notes = std::move(diagnostics.notes);
  job.registration.arguments = host_arguments(options);
  return std::move(job);
}

std::string xdg_directory(const ProcessContext& context, const char* variable, const char* below_home) {
  const std::string directory = context.variable(variable), home = context.variable("HOME");
  // The XDG specification: a relative path is invalid and must be ignored.
  if (directory.starts_with('/')) return absolute_path("ddplaunch", directory);
  return home.starts_with('/') ? absolute_path(concat(below_home, "/ddplaunch"), home) : "";
}

std::vector<std::string> jobs_directories(const ProcessContext& context) {
  std::vector<std::string> directories;
  if (const std::string state = xdg_directory(context, "XDG_STATE_HOME", ".local/state"); !state.empty())
    directories.push_back(state + "/jobs");
  const std::string temporary = context.variable("TMPDIR");
  directories.push_back(absolute_path("ddplaunch-" + std::to_string(context.user_id) + "/jobs",
                                      temporary.starts_with('/') ? absolute_path(temporary, "/") : "/tmp"));
  return directories;
}

std::vector<OptionGroup> ddplaunch_option_groups() {
  return JobOptions("").table.groups();
}

}  // namespace ddp
