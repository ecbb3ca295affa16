#include "apps/train/collectives/nccl_settings/nccl_environment.h"

#include <cstring>
#include <string_view>

namespace ddp::train {

std::vector<NcclVariable> share_gpu_variables(const std::string& identity, bool one_node) {
  std::vector<NcclVariable> variables{
      {"NCCL_HOSTID", identity, true},
      // Ranks that pose as other hosts must not find each other over something that only one host has.
      {"NCCL_P2P_DISABLE", "1", true},
      {"NCCL_SHM_DISABLE", "1", true},
      {"NCCL_NVLS_ENABLE", "0", true},
      {"NCCL_MNNVL_ENABLE", "0", true},
      {"NCCL_NET", "Socket", false},
      {"NCCL_IB_DISABLE", "1", false},
      // Ranks take turns on the GPU: the fewer kernels wait for each other, the better.
      {"NCCL_ALGO", "Ring", false},
      {"NCCL_PROTO", "Simple", false},
      {"NCCL_MAX_NCHANNELS", "1", false},
  };
  if (one_node) variables.push_back({"NCCL_SOCKET_IFNAME", "lo", false});
  return variables;
}

std::vector<NcclVariable> capture_variables(const std::string& file,
                                            const std::function<const char*(const char*)>& get) {
  if (get("NCCL_DEBUG") != nullptr || get("NCCL_DEBUG_FILE") != nullptr) return {};
  return {{"NCCL_DEBUG", "INFO", false},
          {"NCCL_DEBUG_SUBSYS", "INIT,BOOTSTRAP,NET", false},
          {"NCCL_DEBUG_FILE", file, false}};
}

bool sockets_are_wanted(const std::function<const char*(const char*)>& get) {
  const char* network = get("NCCL_NET");
  const char* without = get("NCCL_IB_DISABLE");
  return (network != nullptr && std::string_view(network) == "Socket") ||
         (without != nullptr && std::strcmp(without, "0") != 0 && *without != '\0');
}

}  // namespace ddp::train
