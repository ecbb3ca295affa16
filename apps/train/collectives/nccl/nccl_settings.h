#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

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

/// Returns this node's RDMA ports that are up: "mlx5_0 port 1" (InfiniBand) or "mlx5_1 port 1 (Ethernet)".
/// `root` is /sys/class/infiniband outside tests; without that directory, there are none.
std::vector<std::string> active_infiniband(const std::string& root = "/sys/class/infiniband");

/// The meeting points of NCCL's ranks, as texts for the directory. This file needs no NCCL.

/// Returns the number of ids of a world of `ranks`: one for each `per_root` ranks.
int nccl_roots(int ranks, int per_root);
/// Returns the rank that makes id number `root`. NCCL deals the ranks out to the ids in equal parts, the
/// first ones larger by one. The first rank of a part makes its id.
int nccl_root_rank(int root, int roots, int ranks);
std::string nccl_root_key(const std::string& group, int root);

/// Encodes the id with the version of the library that made it.
std::string encode_nccl_id(std::string_view id, int version);
/// Fails with kUsage if the version is not this rank's: NCCL's ranks must have the same. `by` names the
/// maker.
Result<std::string> decode_nccl_id(std::string_view text, int version, const std::string& by);

/// Returns "2.28.9" for 22809, and "2.8.4" for 2804.
std::string nccl_version_text(int version);

/// NCCL's report at NCCL_DEBUG=INFO of how it connected, for the process and for the last communicator. The
/// parser knows lines of 2.19 to 2.28; a field that is not found stays empty.
struct NcclLog {
  std::string version;               ///< "2.27.3"
  std::string network;               ///< "IB", "Socket", or a plugin's name
  std::vector<std::string> devices;  ///< of that network: "mlx5_0:1/IB"; "eth0"
  std::string bootstrap;             ///< the interface over which the ranks first met
  /// The transport between connected ranks: "P2P", "SHM", "NET".
  std::vector<std::string> transports;
  int channels = 0;
  double seconds = -1;                                 ///< of the start; negative: not known
  std::vector<std::pair<std::string, double>> phases;  ///< of the start: "bootstrap", …
  std::vector<std::string> warnings;                   ///< texts of WARN lines, the oldest first
};
NcclLog read_nccl_log(std::string_view text);
/// Returns the transports between the ranks, with the network in the place of "NET": "P2P", "SHM", "IB
/// mlx5_0:1/IB+mlx5_1:1/IB".
std::vector<std::string> transports_of(const NcclLog& log);

/// Returns "NCCL 2.27.3 over Socket eth0, 2 channels, started in 0.55 s (kernels 0.20, bootstrap 0.30)", as
/// far as known. Phases appear from a tenth of the total on.
std::string nccl_line(const NcclLog& log);

/// Returns a warning for a job over sockets on a node whose ports `infiniband` ("mlx5_0 port 1") are up;
/// empty: none.
std::string sockets_warning(const NcclLog& log, const std::vector<std::string>& infiniband);

}  // namespace ddp::train
