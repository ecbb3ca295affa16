#include "apps/train/collectives/nccl/nccl_id.h"

#include <algorithm>
#include <charconv>

namespace ddp::train {

namespace {

constexpr std::size_t kIdBytes = 128;
constexpr std::string_view kDigits = "0123456789abcdef";

}  // namespace

int nccl_roots(int ranks, int per_root) {
  return std::max(1, (ranks + per_root - 1) / per_root);
}

int nccl_root_rank(int root, int roots, int ranks) {
  return root * (ranks / roots) + std::min(root, ranks % roots);
}

std::string nccl_root_key(const std::string& group, int root) {
  return "nccl/" + group + "/roots/" + std::to_string(root);
}

std::string encode_nccl_id(std::string_view id, int version) {
  std::string text = std::to_string(version) + " ";
  for (const char byte : id) {
    const auto value = static_cast<unsigned char>(byte);
    text += kDigits[value >> 4];
    text += kDigits[value & 15];
  }
  return text;
}

Result<std::string> decode_nccl_id(std::string_view text, int version, const std::string& by) {
  const Error broken{ErrorCode::kProtocol, by + " published an invalid NCCL id"};
  int theirs = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), theirs);
  if (read.ec != std::errc() || read.ptr == text.data() + text.size() || *read.ptr != ' ') return broken;
  if (theirs != version) {
    return Error{ErrorCode::kUsage, by + " has NCCL " + nccl_version_text(theirs) +
                                        " and this rank has NCCL " + nccl_version_text(version) +
                                        "; install the same version for all ranks"};
  }
  text.remove_prefix(static_cast<std::size_t>(read.ptr - text.data()) + 1);
  if (text.size() != 2 * kIdBytes) return broken;
  std::string id;
  for (std::size_t i = 0; i < text.size(); i += 2) {
    const auto high = kDigits.find(text[i]), low = kDigits.find(text[i + 1]);
    if (high == std::string_view::npos || low == std::string_view::npos) return broken;
    id += static_cast<char>(high << 4 | low);
  }
  return id;
}

std::string nccl_version_text(int version) {
  const bool old = version < 10'000;  // until 2.8
  const int major = version / (old ? 1'000 : 10'000), rest = version % (old ? 1'000 : 10'000);
  return std::to_string(major) + "." + std::to_string(rest / 100) + "." + std::to_string(rest % 100);
}

}  // namespace ddp::train
