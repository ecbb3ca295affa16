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

/// The files for one kind of machine, as they are sent. All hosts that need them share one copy.
struct PushSet {
  std::string key;  ///< names the set in the caches of the nodes
  std::vector<PushedFile> files;
  std::vector<std::string> bytes;  ///< content of each file
};

/// The agents that can be pushed: ddplaunchd beside this program for machines of the same kind, and
/// ../libexec/ddplaunch/ddplaunchd-MACHINE for others (docs/users/nodes.md). `train` and train-MACHINE are
/// found alike. The constructor reads only the heads of the files.
class AgentBundle {
 public:
  struct BundleRequest {
    std::string bin_dir;  ///< directory of this program
    AgentHello hello;
    bool train = false;  ///< the job's worker is `train`
  };

  explicit AgentBundle(BundleRequest request);

  /// The agent that a host needs: the installed one is expected at this program's own path.
  const AgentWanted& wanted() const { return wanted_; }

  /// Returns the files for a machine (`uname -m`). kAgentMissing: no file runs on it; the text says where the
  /// search looked, behind "HOST: ". kSystem: a file cannot be read. The first call for a machine reads and
  /// hashes the files, so call it off the loop (BlockingCalls). Any thread.
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
  std::mutex loading_;                                            ///< guards loaded_
  std::map<std::string, std::shared_ptr<const PushSet>> loaded_;  ///< by machine
};

}  // namespace ddp::remote
