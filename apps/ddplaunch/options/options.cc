#include "apps/ddplaunch/options/options.h"

#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <string_view>

#include "apps/ddplaunch/options/accelerate_config.h"
#include "apps/ddplaunch/options/command_line.h"
#include "apps/ddplaunch/options/compatibility_options.h"
#include "apps/ddplaunch/options/diagnostics.h"
#include "apps/ddplaunch/options/job_options.h"
#include "apps/ddplaunch/options/job_plan_text.h"
#include "apps/ddplaunch/options/option_groups.h"
#include "apps/ddplaunch/options/option_readers.h"
#include "base/build_identity.h"
#include "launcher/job/env_filter.h"
#include "remote/hosts/host_range.h"
#include "remote/hosts/shell_command.h"

namespace ddp {

namespace {

using launcher::JobSpec;
using launcher::WorkerCommand;
using std::chrono::milliseconds;

constexpr milliseconds kShortestHeartbeatLimit{2'000};  // a heartbeat comes each second
constexpr milliseconds kShortestHang{1'000};
constexpr unsigned long long kMostRestarts = 1'000'000;

void read_ports(const OptionValues& values, JobSpec& spec, Diagnostics& diagnostics) {
  if (!values.master_port.empty()) {
    const auto port = remote::whole_number(values.master_port, 65'535);
    if (port) {
      spec.master_port = static_cast<std::uint16_t>(*port);
    } else {
      diagnostics.fail("--master-port " + values.master_port +
                       ": give a port from 1 to 65535, or 0 for any free one");
    }
  }
  if (values.port_range.empty()) return;
  spec.port_range = read_port_range(values.port_range);
  if (!spec.port_range) {
    diagnostics.fail("--port-range " + values.port_range +
                     ": give two ports from 1 to 65535, lower one first: 20000-20100");
  } else if (spec.master_port != 0 &&
             (spec.master_port < spec.port_range->first || spec.master_port > spec.port_range->second)) {
    diagnostics.fail("--master-port " + values.master_port + " is not in --port-range " + values.port_range +
                     "; omit one of them, or use matching values");
  }
}

void read_store(const OptionValues& values, JobSpec& spec, Diagnostics& diagnostics) {
  for (const std::string& range : values.store_allow) {
    if (!is_address_range(range))
      diagnostics.fail("--store-allow " + range +
                       ": give an address or a network (10.1.0.7, 10.1.0.0/16, fd00::/8)");
  }
  spec.store_allow = values.store_allow;
  if (values.store.empty() || values.store == "agent") return;
  if (values.store == "worker") {
    spec.store = launcher::StoreMode::kWorker;
  } else if (values.store == "shared") {
    diagnostics.fail("--store shared is not in this release yet, only agent and worker are");
  } else {
    diagnostics.fail("--store " + values.store + ": choose agent or worker");
  }
}

void read_start(const OptionValues& values, const ProcessContext& context, JobSpec& spec,
                Diagnostics& diagnostics) {
  if (!values.ssh_config.empty() && values.ssh_config != "none") {
    if (auto text = context.read_file(values.ssh_config); !text) {
      diagnostics.fail("--ssh-config " + text.error().text);
    }
  }
  spec.ssh_config = values.ssh_config;
  if (!values.ssh_command.empty()) {
    auto words = remote::split_words(values.ssh_command);
    if (words && !words->empty()) {
      spec.ssh_command = std::move(*words);
    } else {
      diagnostics.fail("--ssh-command: " + (words ? "it names no program" : words.error().text));
    }
  }
  spec.ssh_localhost = values.ssh_localhost;
  spec.accept_new_host_keys = values.accept_new_host_keys;
  spec.agent_path =
      values.agent.find('/') == std::string::npos ? values.agent : absolute_path(values.agent, context.cwd);
  spec.push = !values.no_push && !spec.per_node;
  read_time(values.start_timeout, "--start-timeout", milliseconds(1), spec.start_timeout, diagnostics);
  if (!values.network.empty() && !is_network(values.network)) {
    diagnostics.fail("--network " + values.network +
                     ": give a network like 10.1.0.0/16, or the name of an interface");
  }
  spec.network = values.network;
  read_ports(values, spec, diagnostics);
  read_store(values, spec, diagnostics);
}

/// The verb counts only as the very first argument, so that a worker of that name can still run: `ddplaunch
/// -- check`.
Verb read_verb(std::vector<std::string>& args) {
  if (args.empty()) return Verb::kRun;
  const Verb verb = args.front() == "check"   ? Verb::kCheck
                    : args.front() == "hosts" ? Verb::kHosts
                                              : Verb::kRun;
  if (verb != Verb::kRun) args.erase(args.begin());
  return verb;
}

void read_command(const OptionValues& values, const CommandLine& line, Verb verb, JobSpec& spec,
                  Diagnostics& diagnostics) {
  WorkerCommand& command = spec.command;
  if (values.module && values.no_python) {
    diagnostics.fail("--module and --no-python cannot be used together: a module is run by python");
  }
  if (!line.worker_found) {
    // After an unknown option the worker is indistinguishable from the option's value.
    if (line.scanned_all && verb == Verb::kRun)
      diagnostics.fail("no worker given; usage: ddplaunch [options] WORKER [arguments of the worker]");
    return;
  }
  command.argv = line.worker;
  const std::string& first = line.worker.front();
  if (first.empty()) return diagnostics.fail("the worker's name is empty");
  if (values.module) {
    command.kind = WorkerCommand::Kind::kModule;
  } else if (first == "train") {
    command.kind = WorkerCommand::Kind::kTrain;
    command.argv.erase(command.argv.begin());
  } else if (first.ends_with(".py") && !values.no_python) {
    command.kind = WorkerCommand::Kind::kPython;
  }
  const bool python =
      command.kind == WorkerCommand::Kind::kModule || command.kind == WorkerCommand::Kind::kPython;
  if (!values.python.empty() && !python) {
    diagnostics.note("--python has no effect: " + first + " is started as it is");
  }
  if (python) command.python = values.python;
}

/// Applies --wrapper to the hosts without their own wrapper.
void read_wrapper(const OptionValues& values, JobSpec& spec, Diagnostics& diagnostics) {
  if (values.wrapper.empty()) return;
  const auto words = remote::split_words(values.wrapper);
  if (!words || words->empty()) {
    return diagnostics.fail("--wrapper: " + (words ? "it names no program" : words.error().text));
  }
  for (remote::Host& host : spec.hosts) {
    if (host.wrapper.empty()) host.wrapper = *words;
  }
}

void read_worker(const OptionValues& values, const ProcessContext& context, JobSpec& spec,
                 Diagnostics& diagnostics) {
  spec.chdir_given = !values.chdir.empty();
  spec.chdir = spec.chdir_given ? absolute_path(values.chdir, context.cwd) : context.cwd;
  if (!spec.chdir.starts_with('/')) {
    diagnostics.fail(
        "the current directory is unknown (was it deleted?); change to another one, or give --chdir /DIR");
  }
  const bool hosts_in_stdin = values.hosts_from == "-";
  if (hosts_in_stdin && values.stdin_source == "0")
    diagnostics.fail("--stdin 0 cannot be used with --hosts-from -, which reads standard input");
  spec.stdin_to_rank0 = hosts_in_stdin                ? false
                        : values.stdin_source.empty() ? context.stdin_has_data
                                                      : values.stdin_source == "0";
  if (!values.stdin_source.empty() && values.stdin_source != "0" && values.stdin_source != "none") {
    diagnostics.fail("--stdin " + values.stdin_source + ": choose 0 (rank 0 reads it) or none");
  }
}

void read_failure(const OptionValues& values, const ProcessContext& context, JobSpec& spec,
                  Diagnostics& diagnostics) {
  if (!values.max_restarts.empty()) {
    const auto number = remote::whole_number(values.max_restarts, kMostRestarts);
    if (!number) {
      diagnostics.fail("--max-restarts " + values.max_restarts + ": give a whole number from 0 to " +
                       std::to_string(kMostRestarts));
    }
    spec.max_restarts = static_cast<int>(number.value_or(0));
  }
  if (!values.scale_up.empty() && values.scale_up != "next" && values.scale_up != "now")
    diagnostics.fail("--scale-up " + values.scale_up + ": choose next or now");
  spec.scale_up_now = values.scale_up == "now";
  if (values.fence == "all") {
    spec.fence = launcher::FenceMode::kAll;
  } else if (values.fence == "off") {
    spec.fence = launcher::FenceMode::kOff;
  } else if (!values.fence.empty() && values.fence != "rank0") {
    diagnostics.fail("--fence " + values.fence + ": choose rank0, all or off");
  }
  read_time(values.restart_backoff, "--restart-backoff", milliseconds(0), spec.restart_backoff, diagnostics);
  // 0 turns it off. A limit below a second would report each pause of a job as a hang.
  if (values.hang_timeout == "0") {
    spec.hang_timeout = milliseconds(0);
  } else {
    read_time(values.hang_timeout, "--hang-timeout", kShortestHang, spec.hang_timeout, diagnostics);
  }
  read_time(values.stop_grace, "--stop-grace", milliseconds(0), spec.stop_grace, diagnostics);
  // One option sets both: a given time means how long the workers need.
  if (!values.stop_grace.empty()) spec.failure_grace = spec.stop_grace;
  read_time(values.node_timeout, "--node-timeout", kShortestHeartbeatLimit, spec.node_timeout, diagnostics);
  read_time(values.master_timeout, "--master-timeout", kShortestHeartbeatLimit, spec.master_timeout,
            diagnostics);
  if (values.report.empty()) return;
  spec.report_path = absolute_path(values.report, context.cwd);
  if (const auto writable = context.can_write(spec.report_path); !writable)
    diagnostics.fail("--report " + values.report + " cannot be written: " + writable.error().text);
}

void read_job(const OptionValues& values, const ProcessContext& context, Verb verb, JobSpec& spec,
              Diagnostics& diagnostics) {
  spec.job_id = values.job_id.empty() ? context.new_job_id : values.job_id;
  if (!is_job_id(spec.job_id)) {
    return diagnostics.fail(
        "--job-id " + spec.job_id +
        ": give 1 to 64 letters, digits, '.', '_' and '-', starting with a letter or digit");
  }
  if (!values.job_dir.empty()) {
    spec.job_dir = absolute_path(values.job_dir, context.cwd);
    return;
  }
  const std::string* state = launcher::find_env(context.env, "XDG_STATE_HOME");
  const std::string* home = launcher::find_env(context.env, "HOME");
  std::string base;
  const bool joins = spec.per_node && spec.per_node->rank.value_or(0) != 0;
  // The XDG specification: a relative path is invalid and must be ignored.
  if (state != nullptr && state->starts_with('/')) {
    base = *state;
  } else if (home != nullptr && home->starts_with('/')) {
    base = absolute_path(".local/state", *home);
  } else if (verb != Verb::kRun || joins) {
    return;  // these write no files
  } else {
    return diagnostics.fail(
        "HOME is not set, so the directory for the job's files is unknown; give --job-dir DIR");
  }
  // A scheduler that restarts the nodes reuses the name, and each run needs its own files.
  const bool again = spec.per_node && !values.job_id.empty();
  const std::string name = spec.job_id + (again ? "." + context.new_job_id : "");
  spec.job_dir = absolute_path("ddplaunch/jobs/" + name, base);
}

void read_verb_options(const OptionValues& values, Verb verb, Diagnostics& diagnostics) {
  if (verb == Verb::kRun && values.json) {
    diagnostics.fail(
        "--json is only for ddplaunch check and ddplaunch hosts; --jsonl writes the workers' lines as JSON, "
        "--report the end of the job");
  }
  if (verb != Verb::kRun && values.dry_run) {
    diagnostics.fail(std::string("ddplaunch ") + (verb == Verb::kCheck ? "check" : "hosts") +
                     " starts no worker; omit --dry-run, or omit the verb for a plan that contacts no host");
  }
}

void read_deep_options(const OptionValues& values, Verb verb, RunJob& job, Diagnostics& diagnostics) {
  job.deep = values.deep;
  job.collectives = values.collectives;
  job.min_busbw = values.min_busbw;
  const bool any = values.deep || values.collectives;
  if (any && verb != Verb::kCheck) {
    diagnostics.fail(std::string(values.deep ? "--deep" : "--collectives") +
                     " is only for ddplaunch check; to run it as a job use train health or train bench");
  }
  if (values.min_busbw.empty()) return;
  char* end = nullptr;
  const double limit = std::strtod(values.min_busbw.c_str(), &end);
  if (*end != '\0' || !(limit > 0) || limit > 1e9)
    diagnostics.fail("--min-busbw " + values.min_busbw + ": give GB/s, a number above 0");
  if (!values.collectives)
    diagnostics.fail(
        "--min-busbw is only for ddplaunch check --collectives; to measure in a job use train bench");
}

/// Reads the command line, and the values from torchrun's variables and Accelerate's file behind it.
CommandLine read_with_environment(const std::vector<std::string>& args, const ProcessContext& context,
                                  OptionTable& table, Diagnostics& diagnostics) {
  Diagnostics first;
  CommandLine line = read_command_line(args, table, first);
  const bool alone = line.values.launcher == "local";
  const PetOptions pet = read_pet_options(context.env, line.given, alone, diagnostics);
  AccelerateConfig config;
  if (const std::string& path = line.values.accelerate_config; !path.empty()) {
    if (auto text = context.read_file(path)) {
      config = read_accelerate_config(*text, path, diagnostics);
    } else {
      diagnostics.fail("--accelerate-config " + text.error().text);
    }
  }
  if (!pet.words.empty()) {
    diagnostics.note(pet_text(pet));
    diagnostics.advice.push_back(pet_text(pet));
  }
  std::vector<std::string> words = accelerate_arguments(config, line.given);
  words.insert(words.end(), pet.words.begin(), pet.words.end());
  words.insert(words.end(), args.begin(), args.end());
  OptionTable all;
  line = read_command_line(words, all, diagnostics);
  line.values.config_env = std::move(config.env);
  line.values.config_processes = std::move(config.processes);
  line.values.config_devices = std::move(config.devices);
  line.values.config_devices_place = std::move(config.devices_place);
  return line;
}

}  // namespace

ParsedOptions parse_options(const std::vector<std::string>& arguments, const ProcessContext& context) {
  OptionTable table;
  Diagnostics diagnostics;
  std::vector<std::string> args = arguments;
  RunJob job;
  job.verb = read_verb(args);
  CommandLine line = read_with_environment(args, context, table, diagnostics);
  OptionValues& values = line.values;
  if (values.help) return PrintText{table.help()};
  if (values.version) return PrintText{"ddplaunch " + std::string(version()) + '\n'};

  job.json = values.json;
  job.worker_given = line.worker_found;
  job.spec.verbose = values.verbose;
  read_node_options(context, values, job.verb, job.spec, diagnostics);
  if (!job.spec.per_node) heed_scheduler(context, values, diagnostics);
  read_host_options(values, context, job.spec, diagnostics);
  read_start(values, context, job.spec, diagnostics);
  read_wrapper(values, job.spec, diagnostics);
  read_daemon_options(values, context, job.spec, diagnostics);
  read_command(values, line, job.verb, job.spec, diagnostics);
  read_env_options(values, context, job.spec, diagnostics);
  read_worker(values, context, job.spec, diagnostics);
  read_failure(values, context, job.spec, diagnostics);
  read_output_options(values, context, job.spec, diagnostics);
  read_job(values, context, job.verb, job.spec, diagnostics);
  read_verb_options(values, job.verb, diagnostics);
  read_deep_options(values, job.verb, job, diagnostics);
  if (!diagnostics.errors.empty()) return BadUsage{diagnostics.all_errors()};
  if (values.dry_run) return PrintText{job_plan_text(job.spec)};
  job.notes = std::move(diagnostics.notes);
  return job;
}

}  // namespace ddp
