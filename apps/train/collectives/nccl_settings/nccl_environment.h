#pragma once

#include <functional>
#include <string>
#include <vector>

namespace ddp::train {

/// A variable that NCCL reads, once, when it is first used.
struct NcclVariable {
  std::string name;
  std::string value;
  bool always = false;  ///< else what the user has set stays

  friend bool operator==(const NcclVariable&, const NcclVariable&) = default;
};

/// What lets several ranks use one GPU (--share-gpu). NCCL refuses two ranks of one host on one GPU, so each
/// rank poses as a host of its own, and as those share neither memory nor NVLink, all goes through sockets.
/// `identity`: no other rank has it. `one_node`: all ranks are known to be on this machine.
std::vector<NcclVariable> share_gpu_variables(const std::string& identity, bool one_node);

/// What makes NCCL write to `file` how it connects; empty where the user already has it write somewhere.
/// `get` is std::getenv outside tests.
std::vector<NcclVariable> capture_variables(const std::string& file,
                                            const std::function<const char*(const char*)>& get);

/// Whether the user told NCCL to use sockets.
bool sockets_are_wanted(const std::function<const char*(const char*)>& get);

}  // namespace ddp::train
