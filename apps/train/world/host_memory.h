#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>

namespace ddp::train {

/// Returns how many bytes of this host's memory programs can still take. It is the kernel's estimate, or less
/// where a control group of this process leaves less; memory that only caches files counts as free. Empty:
/// unknown. The paths are parameters for tests.
std::optional<std::size_t> available_memory(const std::filesystem::path& proc = "/proc",
                                            const std::filesystem::path& groups = "/sys/fs/cgroup");

/// Returns why `ranks` of this host cannot take `each` bytes each: "1.0 TiB of memory for each rank, and
/// host gpu01 has 21.9 GiB left for its 2 ranks". Empty if they can, or if the memory is unknown. Less than
/// one rank counts as one.
std::string lacking_memory(std::size_t each, int ranks);

}  // namespace ddp::train
