#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "remote/hosts/host.h"

namespace ddp::remote {

// ---- hostfiles and --host (hostfile.cc)

/// An error at a byte of the entry's text.
struct EntryDiagnostic {
  std::size_t offset = 0;
  std::string message;
};

/// One entry with its ranges expanded. The caller, who knows file and line, fills the hosts' locations.
struct HostEntry {
  std::vector<Host> hosts;      ///< empty for a blank line or a comment, and after an error
  std::size_t host_offset = 0;  ///< start of the host's word
  std::vector<EntryDiagnostic> diagnostics;
  std::string open_key;  ///< key of the last pair if its value has no quotes: a comma behind it may belong to
                         ///< the value
};

/// Reads `[user@]name[:slots] key=value … # comment`, the grammar of docs/users/hostfile.md. It continues
/// after an error, so that all errors of an entry are found.
HostEntry parse_entry(std::string_view text);

/// Reads the text of a hostfile (grammar: docs/users/hostfile.md): one entry per line, ranges expanded, order
/// kept. `file` is the name in messages and locations. A byte order mark and CR LF are accepted. The error
/// holds all errors of the file in its order. A file without a host is an error.
Validated<std::vector<Host>> parse_hostfile(std::string_view text, const std::string& file);

/// Reads the same grammar with commas for line ends: "a:4,b:4,c[1-3]:2". Locations carry `option` ("--host")
/// and a column, but no line.
Validated<std::vector<Host>> parse_host_list(std::string_view text, const std::string& option);

// ---- hosts as schedulers name them (scheduler_hosts.cc), in the scheduler's order, which is the order of
// the ranks. If every host has a count of 1, the scheduler runs one launcher per node, and no host gets
// slots. Then --nproc-per-node or the host's GPUs give the number of workers.

/// Slurm's variables of a job, as written; empty: not set.
struct SlurmVariables {
  std::string job_nodelist;    ///< SLURM_JOB_NODELIST: "gpu[01-03,07],login"
  std::string tasks_per_node;  ///< SLURM_TASKS_PER_NODE: "2(x3),1"
  std::string gpus_per_node;   ///< SLURM_GPUS_PER_NODE: "8", "a100:8"
  std::string gpus_on_node;    ///< SLURM_GPUS_ON_NODE: for the node where the variables were read
};
/// Slots are the tasks of a node. If each node has one task, slots are its GPUs, or unset if the GPUs are
/// unknown.
Validated<std::vector<Host>> slurm_hosts(const SlurmVariables& variables);

/// Expands "gpu[01-03,07],login[1-2]n[1-4]". Errors carry `variable` and a column.
Validated<std::vector<std::string>> expand_node_list(std::string_view text, const std::string& variable);
/// Expands "2(x3),1" to 2 2 2 1. Errors carry `variable`.
Validated<std::vector<int>> expand_counts(std::string_view text, const std::string& variable);

/// Reads one host per line, repeated once per slot: PBS_NODEFILE, LSB_DJOB_HOSTFILE, COBALT_NODEFILE. Text
/// behind the host on a line is skipped. `file` is for messages.
Validated<std::vector<Host>> repeated_hosts(std::string_view text, const std::string& file);
/// Reads LSB_HOSTS, which has words instead of lines.
Validated<std::vector<Host>> parse_repeated_hosts(std::string_view text, const std::string& variable);
/// Reads LSB_MCPU_HOSTS: "hostA 4 hostB 8".
Validated<std::vector<Host>> parse_host_counts(std::string_view text, const std::string& variable);
/// Reads SGE's PE_HOSTFILE, one host per line: "hostA 4 all.q@hostA UNDEFINED". Queues of one host add up.
Validated<std::vector<Host>> grid_engine_hosts(std::string_view text, const std::string& file);

}  // namespace ddp::remote
