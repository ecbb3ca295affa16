#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "remote/bootstrap/push_script.h"

namespace ddp::remote {

/// The files for one kind of machine, as they go over the wire. Shared by all hosts that need them, so that a
/// thousand pushes hold one copy.
struct PushSet {
  std::string key;  ///< names it in the caches of the nodes
  std::vector<PushedFile> files;
  std::vector<std::string> bytes;  ///< of each file
};

/// The agents that can be pushed: ddplaunchd beside this program for machines like this one, and
/// ../libexec/ddplaunch/ddplaunchd-MACHINE for others (docs/nodes.md); `train` and train-MACHINE likewise.
/// The constructor reads no more than the heads of the files.
class AgentBundle {
 public:
  struct BundleRequest {
    std::string bin_dir;  ///< where this program lies
    AgentHello hello;
    bool train = false;  ///< the job's worker is `train`
  };

  explicit AgentBundle(BundleRequest request);

  /// For a host: its installed agent is looked for at our own path.
  const AgentWanted& wanted() const { return wanted_; }

  /// What to push to a machine (`uname -m`). kAgentMissing: there is nothing that would run on it; the text
  /// says where it was looked for, behind "HOST: ". kSystem: a file cannot be read. Reads and hashes the
  /// files at its first call for a machine, so it is called off the loop (BlockingCalls). Any thread.
  Result<std::shared_ptr<const PushSet>> set_for(const std::string& machine);

 private:
  struct Paths {
    std::string agent;
    std::string train;
    std::string key;
  };

  void add_program(const std::string& machine, const std::string& agent, const std::string& train);
  Error none_for(const std::string& machine) const;

  std::string libexec_;
  AgentWanted wanted_;
  std::map<std::string, Paths> paths_;                            ///< by machine
  std::map<std::string, std::string> lacks_;                      ///< by machine: why it is not in paths_
  std::mutex loading_;                                            ///< of loaded_
  std::map<std::string, std::shared_ptr<const PushSet>> loaded_;  ///< by machine
};

}  // namespace ddp::remote
