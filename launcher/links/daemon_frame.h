#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace ddp::launcher {

inline constexpr std::uint16_t kDaemonPort = 29499;  ///< the daemon's default port

/// The frames on the TLS link between a master and a node's daemon, behind hello and answer
/// (docs/developers/protocol.md, Daemon): the three streams of an agent and its end, as SSH carries them.
/// Sans-IO. A frame is its kind, a zero byte, the payload's size (16 bits, little-endian) and the payload.
/// Numbers are never reused: 16 and 33 were of version 1 of the link.
enum class DaemonFrame : std::uint8_t {
  kInput = 1,       ///< from the master: bytes for the agent's stdin
  kInputEnd = 2,    ///< from the master: end of file on the agent's stdin
  kOutput = 17,     ///< from the node: bytes of the agent's stdout
  kOutputEnd = 18,  ///< from the node: end of file on the agent's stdout
  kErrors = 19,     ///< from the node: bytes of the agent's stderr
  kEnded = 32,      ///< from the node, last frame: the exit status, 128+n for a signal, 16 bits
};

inline constexpr std::size_t kDaemonFrameHead = 4;
/// A frame with its head fits into one TLS record.
inline constexpr std::size_t kMaxDaemonPayload = 16384 - kDaemonFrameHead;

/// `payload` has at most kMaxDaemonPayload bytes.
std::string daemon_frame(DaemonFrame kind, std::string_view payload);
std::string daemon_ended(int status);

/// Reads one direction of the link. Stores no payload.
class DaemonFrameReader {
 public:
  enum class FrameSender : std::uint8_t { kMaster, kNode };

  struct FramePiece {
    DaemonFrame kind = DaemonFrame::kInput;
    std::string_view bytes{};  ///< of a stream: a nonempty part; valid as long as the input
    std::uint16_t status = 0;  ///< of kEnded
  };

  explicit DaemonFrameReader(FrameSender from) : from_(from) {}

  /// Consumes `bytes` up to the next piece. Unset: all bytes were consumed, or failure() says why the link
  /// must be closed; nothing more is read then.
  std::optional<FramePiece> next(std::string_view& bytes);
  const std::string& failure() const { return failure_; }

 private:
  bool take_head(std::string_view& bytes);
  bool allowed() const;
  void fail(std::string why) { failure_ = std::move(why); }

  const FrameSender from_;
  std::string head_;  ///< the head, complete while a payload is read, and then the payload of kEnded
  DaemonFrame kind_ = DaemonFrame::kInput;
  std::size_t left_ = 0;       ///< remaining bytes of the payload
  bool stream_ended_ = false;  ///< kInputEnd or kOutputEnd came
  bool over_ = false;          ///< kEnded came
  std::string failure_;
};

}  // namespace ddp::launcher
