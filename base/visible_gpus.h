#pragma once

#include <string>
#include <vector>

namespace ddp {

/// Returns the GPUs that a process may use, as CUDA_VISIBLE_DEVICES names them. `visible` is that variable,
/// or nullptr if it is unset; if it is set, its list counts ("" and "-1": none), else the driver's GPUs. Of a
/// GPU that is divided (MIG) each compute instance counts: "MIG-GPU-77…/3/0". A process can use only one of
/// these. Reads small files. `proc`, `dev`: "/proc" and "/dev" outside tests.
std::vector<std::string> visible_gpus(const char* visible, const std::string& proc = "/proc",
                                      const std::string& dev = "/dev");

}  // namespace ddp
