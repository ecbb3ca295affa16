// The verbs, and what --help, --version and --dry-run print.
#include <algorithm>
#include <cstddef>
#include <iterator>
#include <optional>
#include <utility>
#include <vector>

#include "apps/ddplaunch/options/options.h"
#include "base/program.h"
#include "base/text.h"
#include "remote/hosts/shell_command.h"

namespace ddp {
namespace {

using launcher::JobSpec;
using launcher::WorkerCommand;
using rendezvous::ProcsRule;

// Returns the number of workers on one host if it is known before the node has answered.
std::optional<int> workers_on(const remote::Host& host, const JobSpec& spec) {
  switch (spec.nproc.rule) {
    case ProcsRule::kNumber: return spec.nproc.number;
    case ProcsRule::kUnset: return usable_slots(host);
    case ProcsRule::kAuto:
    case ProcsRule::kGpu:
    case ProcsRule::kCpu: return std::nullopt;
  }
  return std::nullopt;
}

std::string details(const remote::Host& host) {
  std::vector<std::string> words;
  if (!host.user.empty()) words.push_back("user=" + host.user);
  if (!host.address.empty()) words.push_back("address=" + host.address);
  if (host.port != 0) words.push_back("port=" + std::to_string(host.port));
  if (!host.jump.empty()) words.push_back("jump=" + host.jump);
  if (!host.chdir.empty()) words.push_back("chdir=" + host.chdir);
  if (!host.wrapper.empty()) words.push_back("wrapper=" + quote(join(host.wrapper, " ")));
  if (!host.devices.empty()) words.push_back("gpus=" + join(host.devices, ","));
  for (const auto& variable : host.env)
    words.push_back("env:" + variable.first);
  return join(words, " ");
}

std::string nodes_text(const JobSpec& spec) {
  const std::size_t used = hosts_used(spec);
  const std::size_t nodes = used - std::min(used, static_cast<std::size_t>(spec.spares));
  TextTable table;
  table.add({"node", "host", "slots", "workers", "ranks", "from the list of hosts"});
  std::optional<int> next = 0;
  for (std::size_t i = 0; i < used; ++i) {
    const remote::Host& host = spec.hosts[i];
    const std::optional<int> count = workers_on(host, spec);
    const std::string slots = host.slots ? std::to_string(*host.slots) : "any";
    if (i >= nodes) {
      table.add({"spare", host.name, slots, "-", "-", details(host)});
      continue;
    }
    table.add({std::to_string(i), host.name, slots, count ? std::to_string(*count) : "?",
               next && count ? format_number_range(*next, *count) : "?", details(host)});
    next = next && count ? std::optional(*next + *count) : std::nullopt;
  }
  std::string text = table.text();
  if (spec.min_nodes > 0) text += "at least " + std::to_string(spec.min_nodes) + " of these nodes\n";
  if (next) {
    text += "world size " + std::to_string(*next) + '\n';
  } else {
    text += "? is counted by the node at the start: " +
            std::string(spec.nproc.rule == ProcsRule::kCpu ? "its CPUs" : "its GPUs") +
            (spec.nproc.rule == ProcsRule::kUnset  ? ", else one worker"
             : spec.nproc.rule == ProcsRule::kAuto ? ", else its CPUs"
                                                   : "") +
            '\n';
  }
  if (used < spec.hosts.size()) text += "unused hosts: " + std::to_string(spec.hosts.size() - used) + '\n';
  return text;
}

std::string names_text(const std::string& title,
                       const std::vector<std::pair<std::string, std::string>>& vars) {
  std::string text = title;
  for (const auto& [name, value] : vars)
    text += ' ' + name;
  return wrapped(vars.empty() ? title + " nothing" : text, 0, 1) + '\n';
}

}  // namespace

std::string command_text(const WorkerCommand& command) {
  std::vector<std::string> words;
  const std::string python = command.python.empty() ? "python3" : command.python;
  switch (command.kind) {
    case WorkerCommand::Kind::kNone:
    case WorkerCommand::Kind::kProgram: break;
    case WorkerCommand::Kind::kPython: words = {python, "-u"}; break;
    case WorkerCommand::Kind::kModule: words = {python, "-u", "-m"}; break;
    case WorkerCommand::Kind::kTrain: words = {"train"}; break;
  }
  words.insert(words.end(), command.argv.begin(), command.argv.end());
  if (auto quoted = remote::shell_quote(words)) return *quoted;
  // No spelling of a line feed works in all shells; this text is only for reading.
  std::string text;
  for (const std::string& word : words)
    text += (text.empty() ? "'" : " '") + word + '\'';
  return text;
}

std::string job_plan_text(const JobSpec& spec) {
  std::string text = "job " + spec.job_id + ", nothing is started\n";
  text += "files in " + spec.job_dir + '\n';
  text += "worker " + command_text(spec.command) + '\n';
  text += "in " + spec.chdir + '\n';
  text += spec.launcher == launcher::LauncherKind::kLocal    ? "on this machine\n"
          : spec.launcher == launcher::LauncherKind::kSlurm  ? "with srun\n"
          : spec.launcher == launcher::LauncherKind::kDaemon ? "through the daemons there\n"
          : spec.per_node ? "one ddplaunch on each node; they connect to " + spec.per_node->master_addr +
                                " port " + std::to_string(spec.per_node->port) + '\n'
                          : "over SSH\n";
  text += '\n' + nodes_text(spec) + '\n';
  text += names_text("set for the workers:", spec.explicit_env);
  text += names_text("forwarded from here:", spec.env);
  return text;
}

namespace {

constexpr VerbRow kVerbs[] = {
    {Verb::kRun, "Run", "run", "JOB.yaml [options]", "start the job that a file describes",
     " (docs/users/config.md). Options of the command line take precedence.", "--dry-run,--detach"},
    {Verb::kCheck, "Run", "check", "[options] [WORKER [arguments of the worker]]",
     "test every host for what would break the job", ", and start no worker (docs/users/check.md).",
     "--deep,--collectives,--min-busbw,--json"},
    {Verb::kHosts, "Run", "hosts", "[options]", "print the ranks and addresses of the job",
     ", and start no worker (docs/users/check.md).", "--history,--forget,--json"},
    {Verb::kPs, "Watch", "ps", "[options]", "list your jobs on this machine",
     ": those that run, and those whose ddplaunch was killed."},
    {Verb::kStatus, "Watch", "status", "[options] [JOB]", "show a job, its nodes and its ranks", "."},
    {Verb::kTop, "Watch", "top", "[options] [JOB]", "watch a job and its nodes, redrawn each second",
     ", and what they use, on a terminal that takes keys."},
    {Verb::kHang, "Watch", "hang", "[options] [JOB]", "say which rank the others wait for",
     ", and what the verdict rests on (docs/users/hang.md). The ranks of the running job are asked, and not "
     "stopped for it."},
    {Verb::kLogs, "Watch", "logs", "[options] [JOB]", "print what the workers wrote",
     ", while the job runs and after its end."},
    {Verb::kAttach, "Watch", "attach", "[options] [JOB]", "follow a running job as its own terminal does",
     ": show its output from now on and the changes of its state, and exit with its exit code. Ctrl-C leaves "
     "the job alone."},
    {Verb::kDashboard, "Watch", "dashboard", "[options] [JOB]", "serve pages about jobs, and metrics",
     " for Prometheus: about JOB, while it runs, or all jobs. Ctrl-C ends the page, not the job."},
    {Verb::kMcp, "Watch", "mcp", "[options]", "serve status, logs and reports to agents",
     " by the Model Context Protocol, over standard input and output (docs/users/tools.md)."},
    {Verb::kStop, "Control", "stop", "[options] [JOB]", "end a job as SIGTERM does",
     ", and return when it has ended."},
    {Verb::kWait, "Control", "wait", "[options] [JOB]", "wait for the end, and exit with the job's code",
     "."},
    {Verb::kExec, "Control", "exec", "[options] [JOB] -- COMMAND [ARG…]", "run a command beside a worker",
     ", on its node, in its environment and its directory."},
    {Verb::kStacks, "Control", "stacks", "[options] [JOB]", "print what each worker does now",
     ": its state, and the stacks of its threads."},
    {Verb::kReport, "Control", "report", "-o FILE [JOB]", "write a page about a job into a file",
     ", for a browser: how it ended, its attempts and events, and the last output of failed ranks."},
    {Verb::kClean, "Control", "clean", "[options] [JOB]", "end what a killed ddplaunch left on the hosts",
     " of the job."},
    {Verb::kRm, "Control", "rm", "[options] JOB…", "delete the files of ended jobs",
     ", and their entries in the list of jobs. Files of --job-dir stay."},
};

/// The options that most jobs use.
constexpr char kMostUsed[] =
    "--hostfile,--host,--nproc-per-node,--nnodes,--launcher,--env,--chdir,--max-restarts,--hang-timeout,"
    "--job-id,--detach,--dry-run";

const VerbRow& row_of(Verb verb) {
  return *std::ranges::find(kVerbs, verb, &VerbRow::verb);
}

}  // namespace

std::span<const VerbRow> verbs() {
  return kVerbs;
}

const VerbRow* find_verb(const std::vector<std::string>& args) {
  const auto* const found =
      args.empty() ? std::end(kVerbs) : std::ranges::find(kVerbs, args.front(), &VerbRow::name);
  return found == std::end(kVerbs) ? nullptr : found;
}

std::string VerbRow::text() const {
  std::string sentences = concat(help, more);
  sentences.front() = static_cast<char>(sentences.front() - 'a' + 'A');
  return sentences;
}

std::string verb_name(Verb verb) {
  return std::string(row_of(verb).name);
}

std::string verb_usage(Verb verb) {
  const VerbRow& row = row_of(verb);
  return "usage: ddplaunch " + std::string(row.name) + ' ' + std::string(row.arguments) + "\n\n" +
         row.text() + '\n';
}

std::string brief_help(const OptionTable& table) {
  std::string text =
      "usage: ddplaunch [options] WORKER [arguments of the worker]\n"
      "       ddplaunch VERB [options] [JOB]\n"
      "Starts WORKER (train, a .py file or any program) on every node, or here when no hosts are given.\n\n";
  std::string_view section;
  for (const VerbRow& verb : kVerbs) {
    if (verb.section != section) text += std::string(section = verb.section) + ":\n";
    text += "  " + std::string(verb.name) + std::string(12 - verb.name.size(), ' ') + std::string(verb.help) +
            '\n';
  }
  return text + "\nOptions that most jobs use (--help all lists all, VERB --help those of a verb):\n" +
         table.help_of(kMostUsed, true);
}

std::string verb_help(const OptionTable& table, Verb verb) {
  return verb_usage(verb) + "\nOptions:\n" +
         table.help_of(row_of(verb).options + std::string(",--help"), false) +
         "All options of a job apply as well: ddplaunch --help all.\n";
}

std::string version_text() {
  return "ddplaunch " + std::string(version()) +
         "\n"
         "commit:    " DDP_COMMIT
         "\n"
         "compiler:  " DDP_COMPILER
         "\n"
         "libraries: " DDP_LIBRARIES "\n";
}

}  // namespace ddp
