#include "launcher/links/daemon_frame.h"

#include <algorithm>
#include <utility>

#include "base/result.h"

namespace ddp::launcher {
namespace {

constexpr std::size_t kStatusSize = 2;

bool is_stream(DaemonFrame kind) {
  return kind == DaemonFrame::kInput || kind == DaemonFrame::kOutput || kind == DaemonFrame::kErrors;
}

std::uint16_t number_at(std::string_view bytes) {
  return static_cast<std::uint16_t>(static_cast<unsigned char>(bytes[0]) |
                                    static_cast<unsigned char>(bytes[1]) << 8);
}

/// Returns whether a frame of this kind may have this size.
bool fits(DaemonFrame kind, std::size_t size) {
  if (is_stream(kind)) return size > 0 && size <= kMaxDaemonPayload;
  return size == (kind == DaemonFrame::kEnded ? kStatusSize : 0);
}

}  // namespace

std::string daemon_frame(DaemonFrame kind, std::string_view payload) {
  const std::size_t size = payload.size();
  DDP_REQUIRE(fits(kind, size), kind, size);
  return concat(static_cast<char>(kind), '\0', static_cast<char>(size & 0xff), static_cast<char>(size >> 8),
                payload);
}

std::string daemon_ended(int status) {
  DDP_REQUIRE(std::in_range<std::uint16_t>(status), status);
  const char bytes[kStatusSize] = {static_cast<char>(status & 0xff), static_cast<char>(status >> 8)};
  return daemon_frame(DaemonFrame::kEnded, {bytes, kStatusSize});
}

/// Returns whether the peer may send a frame of this kind now.
bool DaemonFrameReader::allowed() const {
  switch (kind_) {
    case DaemonFrame::kInput:
    case DaemonFrame::kInputEnd: return from_ == FrameSender::kMaster && !stream_ended_;
    case DaemonFrame::kOutput:
    case DaemonFrame::kOutputEnd: return from_ == FrameSender::kNode && !over_ && !stream_ended_;
    case DaemonFrame::kErrors:
    case DaemonFrame::kEnded: return from_ == FrameSender::kNode && !over_;
  }
  return false;
}

/// True when a head is complete and valid.
bool DaemonFrameReader::take_head(std::string_view& bytes) {
  const std::size_t wanted = std::min(bytes.size(), kDaemonFrameHead - head_.size());
  head_ += bytes.substr(0, wanted);
  bytes.remove_prefix(wanted);
  if (head_.size() < kDaemonFrameHead) return false;
  kind_ = static_cast<DaemonFrame>(head_[0]);
  left_ = number_at(std::string_view(head_).substr(2));
  if (head_[1] == 0 && allowed() && fits(kind_, left_)) return true;
  fail("an unexpected frame (kind " + std::to_string(static_cast<unsigned char>(head_[0])) + ", size " +
       std::to_string(left_) + ")");
  return false;
}

std::optional<DaemonFrameReader::FramePiece> DaemonFrameReader::next(std::string_view& bytes) {
  if (!failure_.empty()) return std::nullopt;
  if (head_.size() < kDaemonFrameHead && !take_head(bytes)) return std::nullopt;
  if (left_ > 0 && bytes.empty()) return std::nullopt;
  FramePiece piece;
  piece.kind = kind_;
  const std::string_view part = bytes.substr(0, left_);
  bytes.remove_prefix(part.size());
  left_ -= part.size();
  if (is_stream(kind_)) {
    piece.bytes = part;
    if (left_ == 0) head_.clear();
    return piece;
  }
  head_ += part;
  if (left_ > 0) return std::nullopt;
  if (kind_ == DaemonFrame::kEnded)
    piece.status = number_at(std::string_view(head_).substr(kDaemonFrameHead));
  head_.clear();
  stream_ended_ = stream_ended_ || kind_ == DaemonFrame::kInputEnd || kind_ == DaemonFrame::kOutputEnd;
  over_ = over_ || kind_ == DaemonFrame::kEnded;
  return piece;
}

}  // namespace ddp::launcher
