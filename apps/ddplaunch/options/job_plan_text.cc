#include "apps/ddplaunch/options/options.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "base/text.h"
#include "remote/hosts/shell_command.h"

namespace ddp {

namespace {

using launcher::JobSpec;
using launcher::ProcsPerNode;
using launcher::WorkerCommand;

constexpr std::size_t kWidth = 100;

// Returns the number of workers on one host if it is known before the node has answered.
std::optional<int> workers_on(const remote::Host& host, const JobSpec& spec) {
  switch (spec.nproc.kind) {
    case ProcsPerNode::Kind::kNumber:
      return spec.nproc.number;
    case ProcsPerNode::Kind::kUnset:
      return usable_slots(host);
    case ProcsPerNode::Kind::kAuto:
    case ProcsPerNode::Kind::kGpu:
    case ProcsPerNode::Kind::kCpu:
      return std::nullopt;
  }
  return std::nullopt;
}

std::string details(const remote::Host& host) {
  std::string text;
  auto add = [&](const std::string& word) { text += (text.empty() ? "" : " ") + word; };
  if (!host.user.empty()) add("user=" + host.user);
  if (!host.address.empty()) add("address=" + host.address);
  if (host.port != 0) add("port=" + std::to_string(host.port));
  if (!host.jump.empty()) add("jump=" + host.jump);
  if (!host.chdir.empty()) add("chdir=" + host.chdir);
  if (!host.wrapper.empty()) {
    const std::string words = join(host.wrapper, " ");
    add("wrapper=\"" + words + '"');
  }
  const std::string devices = join(host.devices, ",");
  if (!devices.empty()) add("gpus=" + devices);
  for (const auto& variable : host.env)
    add("env:" + variable.first);
  return text;
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
    if (i >= nodes) {
      table.add(
          {"spare", host.name, host.slots ? std::to_string(*host.slots) : "any", "-", "-", details(host)});
      continue;
    }
    table.add({std::to_string(i), host.name, host.slots ? std::to_string(*host.slots) : "any",
               count ? std::to_string(*count) : "?", next && count ? format_number_range(*next, *count) : "?",
               details(host)});
    next = next && count ? std::optional(*next + *count) : std::nullopt;
  }
  std::string text = table.text();
  if (spec.min_nodes > 0) text += "at least " + std::to_string(spec.min_nodes) + " of these nodes\n";
  if (next) {
    text += "world size " + std::to_string(*next) + '\n';
  } else {
    text += "? is counted by the node at the start: " +
            std::string(spec.nproc.kind == ProcsPerNode::Kind::kCpu ? "its CPUs" : "its GPUs") +
            (spec.nproc.kind == ProcsPerNode::Kind::kUnset  ? ", else one worker"
             : spec.nproc.kind == ProcsPerNode::Kind::kAuto ? ", else its CPUs"
                                                            : "") +
            '\n';
  }
  if (used < spec.hosts.size()) text += "unused hosts: " + std::to_string(spec.hosts.size() - used) + '\n';
  return text;
}

std::string names_text(const std::string& title,
                       const std::vector<std::pair<std::string, std::string>>& vars) {
  std::string text = title;
  std::size_t column = title.size();
  if (vars.empty()) return text + " nothing\n";
  for (const auto& variable : vars) {
    if (column + 1 + variable.first.size() > kWidth) {
      text += "\n " + variable.first;
      column = 1 + variable.first.size();
    } else {
      text += ' ' + variable.first;
      column += 1 + variable.first.size();
    }
  }
  return text + '\n';
}

}  // namespace

std::string command_text(const WorkerCommand& command) {
  std::vector<std::string> words;
  const std::string python = command.python.empty() ? "python3" : command.python;
  switch (command.kind) {
    case WorkerCommand::Kind::kProgram:
      break;
    case WorkerCommand::Kind::kPython:
      words = {python, "-u"};
      break;
    case WorkerCommand::Kind::kModule:
      words = {python, "-u", "-m"};
      break;
    case WorkerCommand::Kind::kTrain:
      words = {"train"};
      break;
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

}  // namespace ddp
