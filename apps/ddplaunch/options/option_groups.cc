#include "apps/ddplaunch/options/option_groups.h"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <map>
#include <stdexcept>
#include <utility>

namespace ddp {

namespace {

constexpr std::size_t kHelpColumn = 30;
constexpr std::size_t kHelpWidth = 100;

/// The groups of --help in their order, each with one example.
struct HelpGroup {
  const char* title;
  const char* example;
};
constexpr HelpGroup kHosts = {
    "Hosts", "ddplaunch --hostfile hosts --include gpu01:0,1@gpu02 --nproc-per-node 2 train"};
constexpr HelpGroup kStart = {
    "Start", "ddplaunch --hostfile hosts --ssh-config ~/cluster_ssh --network 10.1.0.0/16 train"};
constexpr HelpGroup kWorker = {"Worker",
                               "ddplaunch --env NCCL_DEBUG=INFO --chdir /data/run1 python train.py --lr 0.1"};
constexpr HelpGroup kFailure = {
    "Failure", "ddplaunch --max-restarts 3 --hang-timeout 10m --report end.json python train.py"};
constexpr HelpGroup kOutput = {"Output", "ddplaunch --label '{time} {host} {rank}| ' --fold python train.py"};
constexpr HelpGroup kJob = {"Job", "ddplaunch --hostfile hosts --job-id run7 --dry-run python train.py"};
constexpr const HelpGroup* kGroups[] = {&kHosts, &kStart, &kWorker, &kFailure, &kOutput, &kJob};

constexpr std::string_view kUsage =
    "usage: ddplaunch [options] WORKER [arguments of the worker]\n"
    "       ddplaunch check [options] [WORKER [arguments of the worker]]\n"
    "       ddplaunch hosts [options]\n"
    "\n"
    "Starts WORKER on every node of a cluster, or of this machine when no hosts are given.\n"
    "WORKER is train (the bundled trainer), a .py file (run as python3 -u FILE), or any program.\n"
    "check tests every host for problems that would break the job, hosts prints the ranks and addresses of\n"
    "the job; both start no worker (docs/users/check.md).\n"
    "All arguments after WORKER belong to it. Options may be written with _ for -.\n"
    "Times are 500ms, 15s, 2m, 1h, or a number of seconds; sizes are 500K, 64M, 2G, or bytes.\n";

// Breaks the text into lines that begin at the help column.
std::string wrapped(const std::string& text) {
  std::string out;
  std::size_t column = kHelpColumn;
  std::size_t begin = 0;
  while (begin < text.size()) {
    const std::size_t end = std::min(text.find(' ', begin), text.size());
    const std::size_t size = end - begin;
    if (column + 1 + size > kHelpWidth) {
      out += '\n' + std::string(kHelpColumn, ' ');
      column = kHelpColumn;
    } else if (begin > 0) {
      out += ' ';
      ++column;
    }
    out += text.substr(begin, size);
    column += size;
    begin = end + 1;
  }
  return out;
}

}  // namespace

struct OptionTable::Impl {
  CLI::App app;
  OptionValues values;
  std::map<std::string, bool, std::less<>> takes_value;  ///< by every name
  std::vector<CLI::Option*> options;                     ///< in the order of --help

  void remember(CLI::Option* option, const HelpGroup& group, bool takes) {
    option->group(group.title);
    options.push_back(option);
    for (const std::string& name : option->get_lnames())
      takes_value["--" + name] = takes;
    for (const std::string& name : option->get_snames())
      takes_value["-" + name] = takes;
  }
  void flag(const HelpGroup& group, const char* names, bool& value, const char* text) {
    remember(app.add_flag(names, value, text), group, false);
  }
  template <class T>
  void value(const HelpGroup& group, const char* names, T& value, const char* value_name, const char* text) {
    CLI::Option* option = app.add_option(names, value, text)->type_name(value_name)->expected(1);
    option->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
    remember(option, group, true);
  }
  void list(const HelpGroup& group, const char* names, std::vector<std::string>& value,
            const char* value_name, const char* text) {
    CLI::Option* option = app.add_option(names, value, text)->type_name(value_name)->expected(1);
    option->allow_extra_args(false)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
    remember(option, group, true);
  }

  void add_hosts();
  void add_start();
  void add_worker();
  void add_failure();
  void add_output();
  void add_job();
};

void OptionTable::Impl::add_hosts() {
  value(kHosts, "--hostfile", values.hostfile, "FILE",
        "nodes, one per line: gpu[01-16] slots=8 (docs/users/hostfile.md)");
  list(kHosts, "--host", values.host, "LIST", "nodes on the command line: gpu01:8,gpu[02-04]:8");
  value(kHosts, "--hosts-from", values.hosts_from, "slurm|env|FILE|-",
        "nodes as the scheduler names them, or from standard input (-)");
  value(kHosts, "--include", values.include, "LIST", "use only these hosts and slots: gpu01:0,2@gpu02");
  value(kHosts, "--exclude", values.exclude, "LIST", "use all but these hosts and slots");
  value(kHosts, "--nnodes", values.nnodes, "N|MIN:MAX",
        "use the first N hosts (default: all); MIN:MAX continues with MIN when nodes are lost "
        "(docs/users/elastic.md)");
  value(kHosts, "--spares", values.spares, "K", "keep K more hosts ready to replace lost hosts");
  value(kHosts, "--nproc-per-node", values.nproc_per_node, "N|auto|gpu|cpu",
        "workers on each node (default: its slots; without slots its GPUs; without GPUs 1)");
  flag(kHosts, "--oversubscribe", values.oversubscribe, "allow more workers than slots");
}

void OptionTable::Impl::add_start() {
  value(kStart, "--launcher", values.launcher, "ssh|slurm|daemon|local",
        "how nodes are reached (default: ssh; without hosts local; in a Slurm job slurm, with srun; daemon: "
        "where ddplaunchd --listen runs, docs/users/daemon.md)");
  value(kStart, "--node-rank", values.node_rank, "N",
        "rank of this node when each of the --nnodes nodes runs its own ddplaunch (docs/users/per_node.md)");
  value(kStart, "--master-addr", values.master_addr, "ADDR", "address of node 0, with --node-rank");
  value(kStart, "--rdzv-endpoint", values.rdzv_endpoint, "HOST:PORT",
        "address and port of node 0, as in torchrun");
  flag(kStart, "--insecure", values.insecure, "let nodes join without a token");
  value(kStart, "--token-file", values.token_file, "FILE",
        "file with the secret that all nodes of the job share (default: DDPLAUNCH_TOKEN; with --launcher "
        "daemon, else ~/.config/ddplaunch/token)");
  value(kStart, "--daemon-port", values.daemon_port, "PORT",
        "port of the daemons, for hosts without port= (default: 29499)");
  value(kStart, "--ssh-config", values.ssh_config, "FILE",
        "SSH configuration to use instead of ~/.ssh/config, as ssh -F");
  value(kStart, "--ssh-command", values.ssh_command, "COMMAND",
        "use this ssh program instead of libssh: 'ssh -v'");
  flag(kStart, "--ssh-localhost", values.ssh_localhost, "reach localhost over SSH, too");
  flag(kStart, "--accept-new-host-keys", values.accept_new_host_keys,
       "add keys of unknown hosts to known_hosts; changed keys stay an error");
  value(kStart, "--agent", values.agent, "PATH",
        "path of ddplaunchd on the nodes; none is copied (default: the path beside this program)");
  flag(kStart, "--no-push", values.no_push, "do not copy ddplaunchd to nodes that lack this build");
  value(kStart, "--start-timeout", values.start_timeout, "TIME",
        "time limit until all nodes are ready (default: 120s)");
  value(kStart, "--network", values.network, "CIDR|IFACE",
        "network between the workers (default: the network that all nodes share)");
  value(kStart, "--master-port", values.master_port, "PORT",
        "port of the store on node 0 (default: any free port); with --node-rank the port that nodes connect "
        "to (default: 29500)");
  value(kStart, "--port-range", values.port_range, "LOW-HIGH", "take free ports only from this range");
  value(kStart, "--store", values.store, "agent|worker",
        "process that serves MASTER_PORT: node 0's agent (default) or rank 0 itself "
        "(docs/users/environment.md)");
  list(kStart, "--store-allow", values.store_allow, "CIDR",
       "additional address or network that may connect to the store, besides the job's nodes; may be "
       "repeated");
}

void OptionTable::Impl::add_worker() {
  flag(kWorker, "-m,--module", values.module, "WORKER is a Python module: python3 -u -m WORKER");
  flag(kWorker, "--no-python", values.no_python, "run a .py file as it is, without python3");
  value(kWorker, "--python", values.python, "PATH",
        "interpreter of .py files and modules (default: python3)");
  list(kWorker, "--env", values.env, "NAME[=VALUE]",
       "set a variable for the workers; without a value, forward the one of this environment");
  list(kWorker, "--env-file", values.env_file, "FILE",
       "file of NAME=VALUE lines for the workers; --env takes precedence");
  value(kWorker, "--chdir", values.chdir, "DIR",
        "working directory on the nodes (default: the same as here)");
  value(kWorker, "--wrapper", values.wrapper, "COMMAND",
        "command that starts agent and workers inside a container: 'docker exec -i NAME' "
        "(docs/users/nodes.md)");
  list(kWorker, "--setup", values.setup, "SCRIPT",
       "commands for a login shell on each node before the workers, which inherit its variables: 'module "
       "load cuda'");
  value(kWorker, "--stdin", values.stdin_source, "0|none",
        "reader of standard input: rank 0, or none (default: 0 if it is a pipe or a file)");
}

void OptionTable::Impl::add_failure() {
  value(
      kFailure, "--max-restarts", values.max_restarts, "N",
      "restart all workers after a failure, up to N times per job (default: 0; with --spares or MIN:MAX: 3)");
  value(kFailure, "--restart-backoff", values.restart_backoff, "TIME",
        "wait before the first restart; doubles each time, up to 60s (default: 1s)");
  value(kFailure, "--scale-up", values.scale_up, "next|now",
        "add a node that joins a running job at the next restart (default), or at once by a restart");
  value(kFailure, "--fence", values.fence, "rank0|all|off",
        "before survivors continue, wait until the workers of an unreachable node are dead: only for the "
        "node of rank 0 (default), for any node, or never");
  value(kFailure, "--hang-timeout", values.hang_timeout, "TIME",
        "report a failure when no worker prints or uses the CPU for this time (default: 0, never)");
  value(kFailure, "--stop-grace", values.stop_grace, "TIME",
        "time from SIGTERM to SIGKILL (default: 25s after your signal, 15s after a failure)");
  value(kFailure, "--node-timeout", values.node_timeout, "TIME",
        "a node that is silent for this time counts as lost (default: 15s)");
  value(kFailure, "--master-timeout", values.master_timeout, "TIME",
        "nodes stop their workers when this program is silent for this time (default: 15s)");
  value(kFailure, "--report", values.report, "FILE",
        "file for the report of the job's end, as JSON (docs/users/report.md)");
}

void OptionTable::Impl::add_output() {
  value(kOutput, "--label", values.label, "TEMPLATE",
        "prefix of each line (default: '[{host}:{rank}] '); also {local_rank} {node_rank} {stream} {time}; "
        "none for no label");
  value(kOutput, "--show-ranks", values.show_ranks, "LIST",
        "show only these ranks: 0,8-15 (default: all); the files have all");
  value(kOutput, "--local-ranks-filter", values.local_ranks_filter, "LIST",
        "show only these local ranks of each node: 0,1");
  value(kOutput, "--bars", values.bars, "rank0|node|all|off",
        "ranks whose progress bars a terminal shows (default: rank0, with the spread of all)");
  flag(kOutput, "--fold", values.fold, "show equal lines of several ranks once: [*:0-63]");
  value(kOutput, "--console", values.console, "auto|block|drop",
        "policy for a slow reader of the output: block slows the workers, drop omits and counts lines "
        "(default: auto, drop on a terminal)");
  value(kOutput, "--log-dir", values.log_dir, "DIR",
        "directory for copies of the output: DIR/JOB_ID/attempt_0/RANK/stdout.log, stderr.log");
  value(kOutput, "-t,--tee", values.tee, "STREAMS",
        "streams that go to --log-dir and are shown: 0 none, 1 stdout, 2 stderr, 3 both; or by local rank: "
        "0:3,1:2");
  value(kOutput, "-r,--redirects", values.redirects, "STREAMS", "like --tee, but the streams are not shown");
  value(kOutput, "--log-max-size", values.log_max_size, "SIZE[:PARTS]",
        "start a new part of an output file at this size: NAME, NAME.1, …; keep all parts, or the newest "
        "PARTS (default: 0, one part)");
  flag(kOutput, "--jsonl", values.jsonl,
       "also keep the lines as JSON: attempt_0/lines.jsonl in the job's directory");
  flag(kOutput, "--quiet", values.quiet, "print only the workers' lines and errors");
  flag(kOutput, "-v,--verbose", values.verbose, "report each step");
}

void OptionTable::Impl::add_job() {
  value(kJob, "--job-id", values.job_id, "ID", "name of the job (default: date, time, six digits)");
  value(kJob, "--accelerate-config", values.accelerate_config, "FILE",
        "read size, hosts and variables from a file of `accelerate config` (docs/users/migrating.md)");
  value(kJob, "--job-dir", values.job_dir, "DIR",
        "directory for the files of the job (default: ~/.local/state/ddplaunch/jobs/ID)");
  flag(kJob, "--dry-run", values.dry_run, "print hosts, ranks and command, and start nothing");
  flag(kJob, "--json", values.json, "with check and hosts: print JSON instead of a table");
  flag(kJob, "--deep", values.deep, "with check: also test all devices and the links between them");
  flag(kJob, "--collectives", values.collectives, "with check: also measure all-reduce");
  value(kJob, "--min-busbw", values.min_busbw, "GB/S",
        "with --collectives: report an error below this bus bandwidth");
  flag(kJob, "-V,--version", values.version, "print the version");
  flag(kJob, "-h,--help", values.help, "print this text");
}

OptionTable::OptionTable() : impl_(std::make_unique<Impl>()) {
  impl_->app.set_help_flag();
  impl_->add_hosts();
  impl_->add_start();
  impl_->add_worker();
  impl_->add_failure();
  impl_->add_output();
  impl_->add_job();
}

OptionTable::~OptionTable() = default;

bool OptionTable::knows(std::string_view name) const {
  return impl_->takes_value.contains(name);
}

bool OptionTable::takes_value(std::string_view name) const {
  const auto found = impl_->takes_value.find(name);
  return found != impl_->takes_value.end() && found->second;
}

std::string OptionTable::value_name(std::string_view name) const {
  return takes_value(name) ? impl_->app.get_option(std::string(name))->get_type_name() : std::string();
}

std::vector<std::string_view> OptionTable::names() const {
  std::vector<std::string_view> names;
  for (const auto& entry : impl_->takes_value)
    names.push_back(entry.first);
  return names;
}

OptionValues OptionTable::fill(const std::vector<std::string>& words) {
  std::vector<std::string> reversed(words.rbegin(), words.rend());
  try {
    impl_->app.parse(std::move(reversed));
  } catch (const CLI::ParseError& error) {
    throw std::logic_error(std::string("internal error: options passed the scan, but (please report): ") +
                           error.what());
  }
  return impl_->values;
}

std::string OptionTable::help() const {
  std::string text(kUsage);
  for (const HelpGroup* group : kGroups) {
    text += std::string("\n") + group->title + ":\n";
    for (const CLI::Option* option : impl_->options) {
      if (option->get_group() != group->title) continue;
      std::string left = "  ";
      for (const std::string& name : option->get_snames())
        left += "-" + name + ", ";
      for (const std::string& name : option->get_lnames())
        left += "--" + name;
      if (takes_value("--" + option->get_lnames().front())) left += ' ' + option->get_type_name();
      left += left.size() + 2 > kHelpColumn ? '\n' + std::string(kHelpColumn, ' ')
                                            : std::string(kHelpColumn - left.size(), ' ');
      text += left + wrapped(option->get_description()) + '\n';
    }
    text += std::string("  Example: ") + group->example + '\n';
  }
  return text;
}

}  // namespace ddp
