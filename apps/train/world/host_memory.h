#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>

namespace ddp::train {

/// How many bytes of this host's memory programs can still take, as the kernel estimates it, or as many as
/// the control groups of this process let it; what files only occupy counts as free. Nothing where it is not
/// told. Where to look is for tests.
std::optional<std::size_t> available_memory(const std::filesystem::path& proc = "/proc",
                                            const std::filesystem::path& groups = "/sys/fs/cgroup");

/// Why `ranks` of this host cannot take so many bytes each: "1024.0 GiB of memory for each rank, and host
/// gpu01 has 21.9 GiB left for its 2 ranks". Empty where they can, or where nobody knows. Less than one rank
/// counts as one.
std::string lacking_memory(std::size_t each, int ranks);

/// "1.5 GiB", "26.7 MiB".
std::string room_text(std::size_t bytes);

}  // namespace ddp::train
