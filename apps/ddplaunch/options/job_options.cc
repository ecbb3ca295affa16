#include "apps/ddplaunch/options/job_options.h"

#include <chrono>
#include <string>

#include "base/text.h"
#include "launcher/lines/output_lines.h"
#include "launcher/links/daemon_frame.h"
#include "remote/hosts/host.h"

namespace ddp {

namespace {

using launcher::FenceMode;
using launcher::JobSpec;
using launcher::LauncherKind;
using launcher::StoreMode;
using std::chrono::milliseconds;

constexpr char kUsage[] =
    "usage: ddplaunch [options] WORKER [arguments of the worker]\n"
    "       ddplaunch VERB [options] [JOB]\n"
    "\n"
    "Starts WORKER on every node of a cluster, or of this machine when no hosts are given.\n"
    "WORKER is train (the bundled trainer), a .py file (run as python3 -u FILE), or any program.\n"
    "All arguments after WORKER belong to it. Options may be written with _ for -.\n"
    "Times are 500ms, 15s, 2m, 1h, or a number of seconds; sizes are 500K, 64M, 2G, or bytes.\n"
    "ddplaunch --help lists the verbs; each has a --help of its own (docs/users/operate.md).\n";

constexpr milliseconds kShortestHeartbeatLimit{2'000};  // a heartbeat comes each second
constexpr milliseconds kShortestHang{1'000};  // a shorter limit would report each pause of a job as a hang
constexpr double kMostRestarts = 1'000'000;
constexpr double kMostWorkers = 10'000'000;

// Rules that several options have.
constexpr char kCheck[] = "ddplaunch check";
constexpr char kHosts[] = "ddplaunch hosts";
constexpr char kPerNode[] = "one ddplaunch per node";
constexpr char kOneList[] = "; --include selects hosts of a hostfile";
constexpr char kNotExcluded[] = "; do not start it on the excluded nodes";
const OptionRule kWithoutSsh{
    .others = {"--launcher daemon"}, .advice = ", which reaches the nodes without SSH", .is_harmless = true};

void add_hosts(OptionTable& table, JobSpec& spec, WrittenValues& written) {
  table.group("Hosts",
              "Without `--hostfile`, `--host` and `--hosts-from` the job has one node: this machine.",
              "ddplaunch --hostfile hosts --include gpu01:0,1@gpu02 --nproc-per-node 2 hostname");
  table.value({.names = "--hostfile",
               .other_names = "-hostfile,-machinefile,--machinefile,--deepspeed-hostfile,--mpirun-hostfile",
               .value = "FILE",
               .help = "nodes, one per line: gpu[01-16] slots=8 (docs/users/hostfile.md)",
               .details = "Files of DeepSpeed and MPI are read as they are. `-` is standard input.",
               .completion = Completion::kHostfile},
              text_into(written.hostfile));
  table.list(
      {.names = "--host",
       .other_names = "-H,-w,-host,-hosts,--hosts,--nodelist",
       .value = "LIST",
       .help = "nodes on the command line: gpu01:8,gpu[02-04]:8",
       .details = "The grammar is that of a hostfile ([hostfile.md](hostfile.md)), with commas between "
                  "the nodes. May be repeated.",
       .not_with = {{{"--hostfile"}, kOneList}}},
      texts_into(written.host));
  table.value({.names = "--hosts-from",
               .value = "slurm|env|FILE|-",
               .help = "nodes as the scheduler names them, or from standard input (-)",
               .details = "[hostfile.md](hostfile.md#from-a-scheduler) says which variables are read.",
               .not_with = {{{"--hostfile", "--host"}, kOneList}}},
              text_into(written.hosts_from));
  table.value({.names = "--include",
               .other_names = "-i,--deepspeed-inclusion-filter",
               .value = "LIST",
               .default_text = "all",
               .help = "use only these hosts and slots: gpu01:0,2@gpu02",
               .completion = Completion::kHost,
               .takes_empty = true,
               .not_with = {{{kPerNode}, kNotExcluded}}},
              text_into(written.include));
  table.value({.names = "--exclude",
               .other_names = "-e,--deepspeed-exclusion-filter",
               .value = "LIST",
               .default_text = "none",
               .help = "use all but these hosts and slots",
               .completion = Completion::kHost,
               .takes_empty = true,
               .not_with = {{{"--include"}, "; use one of them"}, {{kPerNode}, kNotExcluded}}},
              text_into(written.exclude));
  table.value({.names = "--nnodes",
               .other_names = "--num-nodes,--num-machines,--nodes",
               .value = "N|MIN:MAX",
               .default_text = "all",
               .help = "use the first N hosts; MIN:MAX continues with MIN when nodes are lost "
                       "(docs/users/elastic.md)",
               .details = "Fewer than N hosts are an error. With `MIN:MAX` the job uses up to MAX nodes; "
                          "when some are lost, it continues with as few as MIN."},
              parsed_into(written.nnodes, read_node_counts,
                          ": give a number of nodes, or MIN:MAX with MIN at most MAX"));
  table.value({.names = "--spares",
               .value = "K",
               .help = "keep K more hosts ready to replace lost hosts",
               .details = "[elastic.md](elastic.md) explains them."},
              number_into(spec.spares, 0, remote::kMaxHosts));
  table.value(
      {.names = "--nproc-per-node",
       .other_names = "--num-gpus,--num-accelerators,-ppn,-npernode,--npernode,--ntasks-per-node",
       .value = "N|" + join(words_of(procs_words()), "|"),
       .default_text = "its slots; without slots its GPUs; without GPUs 1",
       .help = "workers on each node",
       .details = "`auto` is the number of GPUs, or of CPUs without GPUs; `gpu` and `cpu` count these. "
                  "More workers than the slots of a host are an error."},
      procs_into(spec.nproc));
  table.value(
      {.names = "-n,--ntasks",
       .other_names = "-np,--np,--num-processes",
       .value = "TOTAL",
       .help = "workers on all nodes together, as in srun and mpirun (-np)",
       .details = "The slots of the hosts are filled in the order of the hosts, and hosts that get "
                  "no worker are not used. With `--nnodes N`, with `--oversubscribe` or without slots "
                  "each host gets the same number. `--spares` and `--nnodes MIN:MAX` change the number of "
                  "nodes, so they need `--nproc-per-node` instead.",
       .not_with = {{{"--nproc-per-node"},
                     ": -n counts the workers of all hosts, --nproc-per-node those of each host; omit one of "
                     "them"}}},
      number_into(written.ntasks, 1, kMostWorkers));
  table.flag({.names = "--oversubscribe", .help = "allow more workers than slots"}, spec.nproc.oversubscribe);
}

/// Options about the failures of hosts in earlier jobs.
void add_history(OptionTable& table, WrittenValues& written, const std::string& cwd) {
  table.value(
      {.names = "--host-history",
       .value = "DIR",
       .default_text = "~/.local/state/ddplaunch/hosts",
       .help = "directory that keeps the failures of hosts over jobs; none: do not keep them "
               "(docs/users/host_history.md)",
       .details = "The default is `$XDG_STATE_HOME/ddplaunch/hosts` if that variable is set. Several users "
                  "can share a directory with mode 1777."},
      [&written, path = path_into(written.host_history, cwd)](const std::string& text) -> std::string {
        if (text != "none") return path(text);
        written.host_history = text;
        return "";
      });
  table.flag({.names = "--avoid-bad-hosts",
              .help = "leave hosts that failed lately to the spares",
              .details = "[host_history.md](host_history.md) says which hosts these are.",
              .not_with = {{.others = {kPerNode},
                            .advice = ", whose nodes come by themselves",
                            .is_harmless = true}}},
             written.avoid_bad_hosts);
}

/// Options that say how this ddplaunch finds the nodes, or joins them.
void add_meeting(OptionTable& table, JobSpec& spec, WrittenValues& written, const std::string& cwd) {
  table.choice<std::optional<LauncherKind>>(
      {.names = "--launcher",
       .value = "ssh|slurm|daemon|local",
       .default_text = "ssh; without hosts local; in a Slurm job slurm, with srun",
       .help = "how nodes are reached; daemon: where ddplaunchd --listen runs (docs/users/daemon.md)",
       .details = "`local` starts every node as a process of this machine; its hosts must be `localhost` or "
                  "127.x.y.z. `slurm` works inside a Slurm job ([migrating.md](migrating.md)). `pdsh`, as in "
                  "DeepSpeed, means `ssh`."},
      written.launcher,
      {{"ssh", LauncherKind::kSsh},
       {"slurm", LauncherKind::kSlurm},
       {"daemon", LauncherKind::kDaemon},
       {"local", LauncherKind::kLocal},
       {"pdsh", LauncherKind::kSsh}});
  table.value({.names = "--node-rank",
               .other_names = "--machine-rank",
               .value = "N",
               .default_text = "NODE_RANK; SLURM_NODEID under srun; or found out",
               .help = "rank of this node when each of the --nnodes nodes runs its own ddplaunch "
                       "(docs/users/per_node.md)",
               .details = "Node 0 is the master."},
              number_into(written.node_rank, 0, remote::kMaxHosts));
  table.value({.names = "--master-addr",
               .other_names = "--main-process-ip",
               .value = "ADDR",
               .default_text = "MASTER_ADDR; under srun the first node of the step",
               .help = "address of node 0, with --node-rank"},
              text_into(written.master_addr));
  table.value({.names = "--rdzv-endpoint",
               .value = "HOST:PORT",
               .help = "address and port of node 0, as in torchrun",
               .details = "The same as `--master-addr` and `--master-port`. The port may be omitted: 29400."},
              endpoint_into(written.rdzv_endpoint));
  table.flag({.names = "--insecure",
              .help = "let nodes join without a token",
              .details = "Use it only where nobody else reaches the network."});
  table.value({.names = "--token-file",
               .value = "FILE",
               .default_text = "DDPLAUNCH_TOKEN; with --launcher daemon, else ~/.config/ddplaunch/token",
               .help = "file with the secret that all nodes of the job share",
               .details = "The file must be readable by you alone. Nodes that meet on loopback need no token "
                          "([security.md](security.md))."},
              path_into(spec.token_file, cwd));
  table.value({.names = "--daemon-port",
               .value = "PORT",
               .default_text = std::to_string(launcher::kDaemonPort),
               .help = "port of the daemons, for hosts without port=",
               .only_with = {.others = {"--launcher daemon"},
                             .advice = ", which reaches nodes where ddplaunchd --listen runs",
                             .is_harmless = true}},
              number_into(spec.daemon_port, 1, kMaxPort));
}

void add_ssh(OptionTable& table, JobSpec& spec, const std::string& cwd) {
  table.value({.names = "--ssh-config",
               .value = "FILE",
               .default_text = "~/.ssh/config",
               .help = "SSH configuration to use, as ssh -F",
               .details = "`none`: no file.",
               .not_with = {kWithoutSsh}},
              text_into(spec.ssh_config));
  table.value({.names = "--ssh-command",
               .value = "COMMAND",
               .default_text = "libssh",
               .help = "use this ssh program instead of libssh: 'ssh -v'",
               .details = "The command may have options, with quotes as in sh.",
               .completion = Completion::kProgram,
               .not_with = {{.others = {"--launcher slurm"},
                             .advice = ", which starts the nodes with srun",
                             .is_harmless = true},
                            kWithoutSsh}},
              command_into(spec.ssh_command));
  table.flag(
      {.names = "--ssh-localhost",
       .help = "reach localhost over SSH, too",
       .details = "Otherwise localhost and 127.0.0.1 are started as child processes, unless their entry "
                  "has a user, port or key: such a host is always reached over SSH.",
       .not_with = {{{"--launcher local"}, " (or --standalone), which starts each node as a process here"}}},
      spec.ssh_localhost);
  table.flag({.names = "--accept-new-host-keys",
              .help = "add keys of unknown hosts to known_hosts; changed keys stay an error",
              .not_with = {kWithoutSsh}},
             spec.accept_new_host_keys);
  table.value({.names = "--agent",
               .value = "PATH",
               .default_text = "the path beside this program",
               .help = "path of ddplaunchd on the nodes; none is copied",
               .details = "A name without `/` is looked up in PATH on the node.",
               .completion = Completion::kFile,
               .not_with = {{{"--launcher daemon"},
                             ": each daemon starts the ddplaunchd beside it; install this version on the "
                             "nodes"}}},
              program_into(spec.agent_path, cwd));
  table.flag({.names = "--no-push",
              .help = "do not copy ddplaunchd to nodes that lack this build",
              .details = "Such a node is an error then ([nodes.md](nodes.md))."});
  table.value({.names = "--start-timeout", .value = "TIME", .help = "time limit until all nodes are ready"},
              time_into(spec.start_timeout, milliseconds(1)));
}

/// Options about addresses and ports between the workers.
void add_network(OptionTable& table, JobSpec& spec, WrittenValues& written) {
  table.value({.names = "--network",
               .value = "CIDR|IFACE",
               .default_text = "the network that all nodes share",
               .help = "network between the workers",
               .details = "For instance `10.1.0.0/16` or `ib0` ([network.md](network.md))."},
              checked(is_network, ": give a network like 10.1.0.0/16, or the name of an interface",
                      text_into(spec.network)));
  table.value({.names = "--master-port",
               .other_names = "--main-process-port",
               .value = "PORT",
               .default_text = "any free port; with --node-rank " + std::to_string(launcher::PerNode::kPort) +
                               ", under srun from job and step",
               .help = "port of the store on node 0; with --node-rank the port that nodes connect to",
               .details = "The workers see the store's port as MASTER_PORT. `0` is any free port."},
              number_into(written.master_port, 0, kMaxPort));
  table.value({.names = "--port-range",
               .value = "LOW-HIGH",
               .default_text = "any",
               .help = "take free ports only from this range",
               .details = "A `--master-port` must lie in it."},
              parsed_into(spec.port_range, read_port_range,
                          ": give two ports from 1 to 65535, lower one first: 30000-30100"));
  table.choice<StoreMode>({.names = "--store",
                           .help = "process that serves MASTER_PORT: node 0's agent or rank 0 itself "
                                   "(docs/users/environment.md)",
                           .details = "`worker` is for programs that open a second tcp:// group."},
                          spec.store, {{"agent", StoreMode::kAgent}, {"worker", StoreMode::kWorker}});
  table.list({.names = "--store-allow",
              .value = "CIDR",
              .help = "additional address or network that may connect to the store, besides the job's nodes; "
                      "may be repeated",
              .details = "[security.md](security.md#the-store) says who may use the store."},
             checked(is_address_range, ": give an address or a network (10.1.0.7, 10.1.0.0/16, fd00::/8)",
                     texts_into(spec.store_allow)));
}

void add_worker(OptionTable& table, JobSpec& spec, WrittenValues& written, const std::string& cwd) {
  table.group("Worker", "", "ddplaunch --env NCCL_DEBUG=INFO --chdir /data/run1 python train.py --lr 0.1");
  table.flag({.names = "-m,--module", .help = "WORKER is a Python module: python3 -u -m WORKER"});
  table.flag({.names = "--no-python",
              .help = "run a .py file as it is, without python3",
              .not_with = {{{"--module"}, ": a module is run by python"}}});
  table.value({.names = "--python",
               .value = "PATH",
               .default_text = "python3",
               .help = "interpreter of .py files and modules",
               .details = "`python3` is searched in the worker's PATH.",
               .completion = Completion::kProgram},
              text_into(spec.command.python));
  table.list({.names = "--env",
              .value = "NAME[=VALUE]",
              .help = "set a variable for the workers; without a value, forward the one of this environment",
              .details = "It takes precedence over everything that is forwarded. May be repeated. "
                         "[environment.md](environment.md) says which variables are forwarded."},
             texts_into(written.env));
  table.list({.names = "--env-file",
              .value = "FILE",
              .help = "file of NAME=VALUE lines for the workers; --env takes precedence",
              .details = "May be repeated. The format is that of docker "
                         "([environment.md](environment.md#files-of-variables)). `.deepspeed_env` (or "
                         "`DS_ENV_FILE`) is read before it."},
             texts_into(written.env_file));
  table.value({.names = "--chdir",
               .other_names = "-wd,--wd,-wdir,--wdir",
               .value = "DIR",
               .default_text = "the same as here",
               .help = "working directory on the nodes"},
              path_into(spec.chdir, cwd));
  table.value({.names = "--wrapper",
               .value = "COMMAND",
               .help = "command that starts agent and workers inside a container: 'docker exec -i NAME' "
                       "(docs/users/nodes.md)",
               .details = "It applies to each host without a `wrapper=` of its own. Quotes are as in sh.",
               .completion = Completion::kProgram,
               .not_with = {{{kPerNode}, "; start each ddplaunch inside the wrapper instead"}}},
              command_into(written.wrapper));
  table.list(
      {.names = "--setup",
       .value = "SCRIPT",
       .help = "commands for a login shell on each node before the workers, which inherit its variables: "
               "'module load cuda'",
       .details = "May be repeated; the scripts run in their order ([environment.md](environment.md))."},
      texts_into(spec.setup));
  table.choice<std::optional<bool>>({.names = "--stdin",
                                     .default_text = "0 if it is a pipe or a file",
                                     .help = "reader of standard input: rank 0, or none",
                                     .details = "Otherwise the default is `none`."},
                                    written.stdin_to_rank0, {{"0", true}, {"none", false}});
}

void add_failure(OptionTable& table, JobSpec& spec) {
  table.group("Failure", "",
              "ddplaunch --max-restarts 3 --hang-timeout 10m --report end.json python train.py");
  table.value(
      {.names = "--max-restarts",
       .value = "N",
       .default_text = std::to_string(spec.max_restarts) + "; with --spares or MIN:MAX " +
                       std::to_string(kElasticRestarts),
       .help = "restart all workers after a failure, up to N times per job",
       .details = "N counts for the whole job, whichever node or rank failed. Each start is an attempt."},
      number_into(spec.max_restarts, 0, kMostRestarts));
  table.value({.names = "--restart-backoff",
               .value = "TIME",
               .help = "wait before the first restart; doubles each time, up to 60s",
               .details = "Only attempts that ran for less than a minute double it."},
              time_into(spec.restart_backoff, milliseconds(0)));
  table.choice<bool>(
      {.names = "--scale-up",
       .help = "add a node that joins a running job at the next restart, or at once by a restart",
       .details = "[elastic.md](elastic.md) explains it."},
      spec.scale_up_now, {{"next", false}, {"now", true}});
  table.choice<FenceMode>(
      {.names = "--fence",
       .help =
           "before survivors continue, wait until the workers of an unreachable node are dead: only for the "
           "node of rank 0, for any node, or never",
       .details = "Those workers may run until their node's lease ends "
                  "([elastic.md](elastic.md#two-attempts))."},
      spec.fence, {{"rank0", FenceMode::kRank0}, {"all", FenceMode::kAll}, {"off", FenceMode::kOff}});
  table.value({.names = "--hang-timeout",
               .value = "TIME",
               .default_text = duration_text(launcher::kElasticHang) +
                               " if the job may restart and all workers report steps, else never",
               .help = "report a failure when no worker prints or uses the CPU for this time",
               .details = "The ranks are reported, and their stacks collected ([hang.md](hang.md)). At least "
                          "`1s`; `0` means never."},
              time_into(spec.hang_timeout, kShortestHang, true));
  table.value({.names = "--report-stalls",
               .value = "TIME",
               .help = "say which rank the others wait for when the job makes no progress for this time",
               .details = "Nothing is stopped. It is said again after three and six times as long "
                          "([hang.md](hang.md#jobs-that-make-no-progress)). At least `1s`; `0` means never."},
              time_into(spec.report_stalls, kShortestHang, true));
  table.list(
      {.names = "--watch",
       .value = "REGEX=ACTION",
       .help = "report a line of a worker's output that matches, treat the job as hung, or the rank as "
               "failed: report, hang, fail; may be repeated (docs/users/hang.md)",
       .details = "`--watch '(?i)loss.*\\bnan\\b=fail'`. The pattern is searched in each line of "
                  "stdout and stderr ([hang.md](hang.md#lines-that-mean-trouble))."},
      watch_into(spec.watch));
  table.flag({.names = "--no-diagnosis",
              .help = "start nothing in Python workers that tells where they are in a hang",
              .details = "PyTorch's worker server, or a thread in its place, tells which collective each "
                         "rank waits in when a job hangs "
                         "([hang.md](hang.md#pytorch-jobs))."},
             spec.no_diagnosis);
  table.value(
      {.names = "--stop-grace",
       .other_names = "--shutdown-timeout",
       .value = "TIME",
       .default_text = duration_text(spec.stop_grace) + " after your signal, " +
                       duration_text(spec.failure_grace) + " after a failure",
       .help = "time from the first signal to SIGKILL",
       .details =
           "A given time applies to both cases. [exit_codes.md](exit_codes.md#how-workers-are-stopped) "
           "says which signals the workers get."},
      time_into(spec.stop_grace, milliseconds(0)));
  table.choice<bool>(
      {.names = "--stop-signal-to",
       .value = "group|leader",
       .help = "who gets these signals: each worker's process `group`, or the worker alone (`leader`)",
       .details = "With `leader`, a DataLoader's processes live on while the worker writes its last "
                  "checkpoint. SIGKILL reaches all in any case."},
      spec.stop_leaders, {{"group", false}, {"leader", true}});
  table.value({.names = "--node-timeout",
               .value = "TIME",
               .help = "an outage of a node that is shorter costs nothing; 2s later it counts as lost",
               .details = "At least `2s`."},
              time_into(spec.node_timeout, kShortestHeartbeatLimit));
  table.value(
      {.names = "--master-timeout",
       .value = "TIME",
       .default_text = "twice --node-timeout and 5s: " + duration_text(node_lease(spec)),
       .help = "nodes stop their workers when this program is silent for this time",
       .details = "At least `2s`. After an outage of the network TCP may need twice the outage until it "
                  "has resent what was lost, so a shorter time ends jobs that could go on."},
      time_into(spec.master_timeout, kShortestHeartbeatLimit));
  table.list({.names = "--on",
              .value = "EVENT=COMMAND",
              .help = "run a shell command here at an event of the job: start, failure, restart, node-lost, "
                      "hang, end; may be repeated (docs/users/operate.md)",
              .details = "The job does not wait for it. The event is a line of JSON on its standard input."},
             hooks_into(spec.hooks));
  table.value({.names = "--report",
               .value = "FILE",
               .help = "file for the report of the job's end, as JSON (docs/users/report.md)",
               .details = "`-` is standard output, behind the workers' output. The directory must exist. The "
                          "job's directory always has the report as `report.json`."},
              text_into(spec.report_path));
}

void add_job(OptionTable& table, RunJob& job, WrittenValues& written, const std::string& cwd) {
  table.group("Job", "", "ddplaunch --hostfile hosts --job-id run7 --dry-run python train.py");
  table.value(
      {.names = "--job-id",
       .other_names = "--rdzv-id",
       .value = "ID",
       .default_text = "date, time, six digits",
       .help = "name of the job",
       .details = "Up to 64 letters, digits, `.`, `_` and `-`.",
       .completion = Completion::kJobId},
      checked(is_job_id, ": give 1 to 64 letters, digits, '.', '_' and '-', starting with a letter or digit",
              text_into(job.spec.job_id)));
  table.value(
      {.names = "--job-file",
       .value = "FILE",
       .help = "read options and worker from a YAML file; ddplaunch run FILE is the same "
               "(docs/users/config.md)",
       .details = "Options of the command line take precedence over the file, and so does its worker."},
      text_into(written.job_file));
  table.value({.names = "--accelerate-config",
               .other_names = "--config-file",
               .value = "FILE",
               .help = "read size, hosts and variables from a file of `accelerate config` "
                       "(docs/users/migrating.md)",
               .details = "Options take precedence over the file."},
              text_into(written.accelerate_config));
  table.value(
      {.names = "--job-dir",
       .value = "DIR",
       .default_text = "~/.local/state/ddplaunch/jobs/ID",
       .help = "directory for the files of the job",
       .details =
           "The default is `$XDG_STATE_HOME/ddplaunch/jobs/ID` if that variable is set; with `--job-id` it "
           "ends in `ID.TIME`. A directory holds one run ([output.md](output.md#files)), and some "
           "are refused ([security.md](security.md#directories-and-the-report))."},
      path_into(job.spec.job_dir, cwd));
  table.flag({.names = "--detach",
              .help = "return when all ranks run, and print the job's id",
              .details = "The job survives a logout ([operate.md](operate.md#detached-jobs)).",
              .not_with = {{{kCheck, kHosts}, ", which starts no job"},
                           {{kPerNode}, "; use nohup"},
                           {{"--stdin 0"}, ": a detached job leaves standard input"},
                           {{"--report -"}, "; name a file"}}},
             job.detach);
  table.value({.names = "--keep-jobs",
               .value = "N",
               .help = "keep the files of the newest N jobs; 0 keeps all",
               .details = "Older ones in the default directory are deleted when a job starts "
                          "([operate.md](operate.md#kept-jobs))."},
              number_into(job.registration.keep, 0, kMostRestarts));
  table.value(
      {.names = "--metrics-listen",
       .value = "ADDRESS:PORT",
       .help = "serve the job's metrics for Prometheus there, to everybody (docs/users/metrics.md)",
       .details =
           "Of a name, the first address counts. Nothing is encrypted, and no token is asked for. A metrics "
           "reader of your own user can use the control socket instead."},
      listen_into(job.registration.metrics.address, job.registration.metrics.port));
  table.value({.names = "--metrics-linger",
               .value = "TIME",
               .help = "go on serving the last metrics for this time after the job's end",
               .details = "`ddplaunch` exits later, with the job's exit code; Ctrl-C ends the wait.",
               .only_with = {{"--metrics-listen"}, ""}},
              time_into(job.registration.metrics.linger, milliseconds(0)));
  table.flag({.names = "--dry-run",
              .help = "print hosts, ranks and command, and start nothing",
              .details = "It also prints the names of the environment's variables.",
              .not_with = {{{kCheck, kHosts},
                            ", which starts no worker; omit --dry-run, or omit the verb for a plan that "
                            "contacts no host"}}});
  table.flag({.names = "--json",
              .help = "print JSON instead of a table",
              .only_with = {{kCheck, kHosts},
                            "; --jsonl writes the workers' lines as JSON, --report the end of the job"}},
             job.json);
  table.flag(
      {.names = "--deep",
       .help = "also test all devices and the links between them",
       .details = "It tests the device of each rank, each pair of ranks and all ranks together, with "
                  "`train health` on the hosts, which takes more than ten seconds ([check.md](check.md)).",
       .only_with = {{kCheck}, "; to run it as a job use train health"}},
      job.deep);
  table.flag({.names = "--collectives",
              .help = "also measure all-reduce",
              .details = "It runs `train bench allreduce` over all ranks.",
              .only_with = {{kCheck}, "; to run it as a job use train bench"}},
             job.collectives);
  table.value({.names = "--min-busbw",
               .value = "GB/S",
               .help = "report an error below this bus bandwidth",
               .details = "It is compared with the bus bandwidth of 16 MiB.",
               .only_with = {{"--collectives"}, "; to measure in a job use train bench"}},
              checked(is_bandwidth, ": give GB/s, a number above 0", text_into(job.min_busbw)));
  table.flag({.names = "--history",
              .help = "print the failures of hosts in earlier jobs instead",
              .details = "No host is contacted.",
              .only_with = {{kHosts}, "; ddplaunch hosts --history prints them"}},
             job.history);
  table.list({.names = "--forget",
              .value = "HOST",
              .help = "forget the failures of a host, as after a repair; may be repeated",
              .details = "In a directory of several users only its owner and root can forget the failures in "
                         "others' jobs.",
              .only_with = {{kHosts}, "; ddplaunch hosts --forget HOST does it"}},
             texts_into(job.forget));
  table.flag({.names = "-V,--version", .help = "print the version"});
  table.flag({.names = "-h,--help", .help = "print a short help; --help all: all options"});
}

using launcher::Bars;
using launcher::ConsolePolicy;
using launcher::OutputOptions;

constexpr char kStreamsAdvice[] =
    ": give 0 (none), 1 (stdout), 2 (stderr) or 3 (both), or local ranks with them: 0:3,1:2";

void add_shown(OptionTable& table, OutputOptions& output) {
  table.group("Output", "[output.md](output.md) explains these options.",
              "ddplaunch --label '{time} {host} {rank}| ' --fold python train.py");
  table.value(
      {.names = "--label",
       .value = "TEMPLATE",
       .default_text = "'[{host}:{rank}] '",
       .help = "prefix of each line; also {local_rank} {node_rank} {stream} {time}; none for no label",
       .details = "`{{` and `}}` stand for braces. An empty template is no label, too.",
       .takes_empty = true},
      text_into(output.label));
  table.value({.names = "--show-ranks",
               .value = "LIST",
               .default_text = "all",
               .help = "show only these ranks: 0,8-15; the files have all",
               .completion = Completion::kRank},
              parsed_into(output.show_ranks, read_rank_ranges, ": give ranks like 0,8-15, or all"));
  table.value({.names = "--local-ranks-filter",
               .value = "LIST",
               .default_text = "all",
               .help = "show only these local ranks of each node: 0,1",
               .completion = Completion::kRank},
              parsed_into(output.local_ranks_filter, read_local_ranks, ": give local ranks like 0,1 or 0-3"));
  table.choice<Bars>(
      {.names = "--bars",
       .default_text = "rank0, with the spread of all",
       .help = "ranks whose progress bars are shown"},
      output.bars,
      {{"rank0", Bars::kRank0}, {"node", Bars::kNode}, {"all", Bars::kAll}, {"off", Bars::kOff}});
  table.flag({.names = "--fold",
              .help = "show equal lines of several ranks once: [*:0-63]",
              .details = "Lines count as equal if the ranks print them within 100 ms."},
             output.fold);
  table.choice<ConsolePolicy>(
      {.names = "--console",
       .default_text = "auto, which drops on a terminal",
       .help = "policy for a slow reader of the output: block slows the workers, drop omits and counts lines",
       .details = "`auto` blocks on a pipe. The files have all lines."},
      output.console,
      {{"auto", ConsolePolicy::kAuto}, {"block", ConsolePolicy::kBlock}, {"drop", ConsolePolicy::kDrop}});
}

void add_files(OptionTable& table, launcher::JobSpec& spec, const std::string& cwd) {
  OutputOptions& output = spec.output;
  table.value({.names = "--log-dir",
               .other_names = "--enable-each-rank-log",
               .value = "DIR",
               .help = "directory for copies of the output: DIR/JOB_ID/attempt_0/RANK/stdout.log, stderr.log",
               .details = "It gets all streams, unless `--tee` or `--redirects` select some."},
              path_into(output.log_dir, cwd));
  table.value(
      {.names = "-t,--tee",
       .value = "STREAMS",
       .default_text = "0",
       .help = "streams that go to --log-dir and are shown: 0 none, 1 stdout, 2 stderr, 3 both; or by "
               "local rank: 0:3,1:2"},
      parsed_into(output.tee, read_stream_choice, kStreamsAdvice));
  table.value({.names = "-r,--redirects",
               .value = "STREAMS",
               .default_text = "0",
               .help = "like --tee, but the streams are not shown",
               .details = "The job's directory has them in any case."},
              parsed_into(output.redirects, read_stream_choice, kStreamsAdvice));
  table.value({.names = "--log-max-size",
               .value = "SIZE[:PARTS]",
               .default_text = "0, one part",
               .help = "start a new part of an output file at this size: NAME, NAME.1, …; keep all parts, or "
                       "the newest PARTS",
               .details = "At least `4K`; `0` is no limit. `64M:4` keeps the newest four parts."},
              log_limit_into(output));
  table.value({.names = "--tensorboard",
               .value = "DIR",
               .help = "write steps and loss for TensorBoard: DIR/JOB_ID/events.out.tfevents.…",
               .details = "See [metrics.md](metrics.md#tensorboard)."},
              path_into(output.tensorboard, cwd));
  table.flag({.names = "--jsonl",
              .help = "also keep the lines as JSON: attempt_0/lines.jsonl in the job's directory"},
             output.jsonl);
  table.flag({.names = "--quiet", .help = "print only the workers' lines and errors"}, spec.quiet);
  table.flag({.names = "-v,--verbose", .help = "report each step", .not_with = {{{"--quiet"}}}},
             spec.verbose);
}

}  // namespace

JobOptions::JobOptions(const std::string& cwd) : table(kUsage, true) {
  JobSpec& spec = job.spec;
  add_hosts(table, spec, written);
  table.group("Start", "",
              "ddplaunch --hostfile hosts --ssh-config ~/cluster_ssh --network 10.1.0.0/16 train");
  add_meeting(table, spec, written, cwd);
  add_ssh(table, spec, cwd);
  add_network(table, spec, written);
  add_worker(table, spec, written, cwd);
  add_failure(table, spec);
  add_history(table, written, cwd);
  add_shown(table, spec.output);
  add_files(table, spec, cwd);
  add_job(table, job, written, cwd);
}

std::vector<std::string> JobOptions::broken_rules() const {
  std::vector<std::string> circumstances;
  if (job.verb != Verb::kRun) circumstances.push_back("ddplaunch " + verb_name(job.verb));
  if (job.spec.per_node) circumstances.emplace_back(kPerNode);
  return table.broken_rules(circumstances, [&](const Option& option) {
    return std::ranges::none_of(sources, [&](const GivenOption& given) {
      return !given.in_settings && table.find(given.name) == &option;
    });
  });
}

namespace {

void check_streams(const launcher::StreamChoice& choice, const char* option, int workers,
                   Diagnostics& diagnostics) {
  if (choice.by_local.empty() || choice.by_local.rbegin()->first < workers) return;
  diagnostics.fail(option, ": there is no local rank ", choice.by_local.rbegin()->first,
                   " with --nproc-per-node ", workers);
}

}  // namespace

void check_output_options(JobOptions& options, Diagnostics& diagnostics) {
  const launcher::JobSpec& spec = options.job.spec;
  OutputOptions& output = options.job.spec.output;
  if (output.label == "none") output.label.clear();
  if (const auto checked = launcher::check_label_template(output.label); !checked)
    diagnostics.fail(checked.error().text);
  if (spec.nproc.rule != rendezvous::ProcsRule::kNumber) return;
  check_streams(output.tee, "--tee", spec.nproc.number, diagnostics);
  check_streams(output.redirects, "--redirects", spec.nproc.number, diagnostics);
}

}  // namespace ddp
