#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/ddplaunch/options/accelerate_config.h"
#include "launcher/job/env_filter.h"
#include "launcher/job/job_spec.h"

namespace ddp {

/// The options as written. An empty text means that the option is not given.
struct OptionValues {
  // Hosts
  std::string hostfile;
  std::vector<std::string> host;
  std::string hosts_from;
  std::string include;
  std::string exclude;
  std::string nnodes;
  std::string spares;
  std::string nproc_per_node;
  bool oversubscribe = false;
  // Start
  std::string launcher;
  std::string token_file;
  std::string node_rank;
  std::string master_addr;
  std::string rdzv_endpoint;
  bool insecure = false;
  std::string daemon_port;
  std::string ssh_config;
  std::string ssh_command;
  bool ssh_localhost = false;
  bool accept_new_host_keys = false;
  std::string agent;
  bool no_push = false;
  std::string start_timeout;
  std::string network;
  std::string master_port;
  std::string port_range;
  std::string store;
  std::vector<std::string> store_allow;
  // Worker
  bool module = false;
  bool no_python = false;
  std::string python;
  std::vector<std::string> env;
  std::vector<std::string> env_file;
  std::string chdir;
  std::string wrapper;
  std::vector<std::string> setup;
  std::string stdin_source;
  // Failure
  std::string max_restarts;
  std::string restart_backoff;
  std::string scale_up;
  std::string fence;
  std::string hang_timeout;
  std::string stop_grace;
  std::string node_timeout;
  std::string master_timeout;
  std::string report;
  // Output
  std::string label = launcher::OutputOptions().label;  ///< empty or "none": no label
  std::string show_ranks;
  std::string local_ranks_filter;
  std::string bars;
  bool fold = false;
  std::string console;
  std::string log_dir;
  std::string tee;
  std::string redirects;
  std::string log_max_size;
  bool jsonl = false;
  bool quiet = false;
  bool verbose = false;
  // Job
  std::string accelerate_config;
  std::string job_id;
  std::string job_dir;
  bool dry_run = false;
  bool json = false;
  bool help = false;
  // Values of the --accelerate-config file that are not options
  launcher::EnvVars config_env;
  std::optional<AccelerateProcesses> config_processes;
  std::vector<std::string> config_devices;
  std::string config_devices_place;
  bool version = false;
  bool deep = false;
  bool collectives = false;
  std::string min_busbw;
};

/// The options of this release: one table for lookup, filling and --help. Only the source file uses CLI11.
class OptionTable {
 public:
  OptionTable();
  ~OptionTable();

  /// Returns whether `name` ("--nnodes" or "-m", dashes only) is an option, and whether it takes a value.
  bool knows(std::string_view name) const;
  bool takes_value(std::string_view name) const;
  /// Returns the placeholder of its value in --help: "FILE". Empty for a flag.
  std::string value_name(std::string_view name) const;
  std::vector<std::string_view> names() const;

  /// `words` are known options only, each followed by its value as a separate word if it takes one. If an
  /// option is given several times the last one counts, except that --host, --env and --env-file add up.
  OptionValues fill(const std::vector<std::string>& words);

  /// Returns the text of --help.
  std::string help() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ddp
