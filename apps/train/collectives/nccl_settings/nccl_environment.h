#pragma once

#include <functional>
#include <string>
#include <vector>

namespace ddp::train {

/// A variable that NCCL reads once, at its first use.
struct NcclVariable {
  std::string name;
  std::string value;
  bool always = false;  ///< false: the user's own value stays

  friend bool operator==(const NcclVariable&, const NcclVariable&) = default;
};

/// Returns the variables that let several ranks use one GPU (--share-gpu). NCCL refuses two ranks of one host
/// on one GPU, so each rank poses as a host of its own. Such hosts share neither memory nor NVLink, so all
/// data goes through sockets. `identity`: unique to this rank. `one_node`: all ranks are known to be on this
/// machine.
std::vector<NcclVariable> share_gpu_variables(const std::string& identity, bool one_node);

/// Returns the variables that make NCCL write to `file` how it connects. Empty if the user already directs
/// NCCL's log. `get` is std::getenv outside tests.
std::vector<NcclVariable> capture_variables(const std::string& file,
                                            const std::function<const char*(const char*)>& get);

/// Returns whether the user makes NCCL use sockets.
bool sockets_are_wanted(const std::function<const char*(const char*)>& get);

}  // namespace ddp::train
