#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace ddp::train {

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

}  // namespace ddp::train
