#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ddp::train {

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

/// Returns "NCCL 2.27.3 over Socket eth0, 2 channels, started in 0.55 s (kernels 0.20, bootstrap 0.30)", as
/// far as known. Phases appear from a tenth of the total on.
std::string nccl_line(const NcclLog& log);

/// Returns a warning for a job over sockets on a node whose ports `infiniband` ("mlx5_0 port 1") are up;
/// empty: none.
std::string sockets_warning(const NcclLog& log, const std::vector<std::string>& infiniband);

}  // namespace ddp::train
