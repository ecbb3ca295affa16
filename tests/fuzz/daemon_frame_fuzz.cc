// Feeds arbitrary bytes to the frame reader of both ends of a daemon's link. The size of the chunks must not
// change the result. No frame may follow the end.
#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

#include "launcher/links/daemon_frame.h"
#include "tests/fuzz/require.h"

using namespace ddp::launcher;

namespace {

/// Returns all frames as text. Adjacent bytes of one stream are joined, so that chunk sizes do not show.
std::string read_all(DaemonFrameReader::FrameSender from, std::string_view bytes, std::size_t cut) {
  DaemonFrameReader reader(from);
  std::string heard;
  std::size_t stream_bytes = 0;
  DaemonFrame last = DaemonFrame::kEnded;
  bool over = false;
  const std::size_t size = bytes.size();
  while (!bytes.empty() && reader.failure().empty()) {
    std::string_view part = bytes.substr(0, cut);
    bytes.remove_prefix(part.size());
    while (const auto piece = reader.next(part)) {
      require(!over);
      over = piece->kind == DaemonFrame::kEnded;
      if (piece->bytes.empty()) {
        heard +=
            "\n" + std::to_string(static_cast<int>(piece->kind)) + " " + std::to_string(piece->status) + "\n";
        last = piece->kind;
        continue;
      }
      if (piece->kind != last) heard += "\n" + std::to_string(static_cast<int>(piece->kind)) + " ";
      last = piece->kind;
      heard += piece->bytes;
      stream_bytes += piece->bytes.size();
    }
    require(part.empty() || !reader.failure().empty());
  }
  require(stream_bytes <= size);
  return heard + "\n" + reader.failure();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  for (const auto from : {DaemonFrameReader::FrameSender::kMaster, DaemonFrameReader::FrameSender::kNode}) {
    const std::string whole = read_all(from, bytes, std::max<std::size_t>(bytes.size(), 1));
    require(read_all(from, bytes, 1) == whole);
    require(read_all(from, bytes, 1 + data[0] % 16) == whole);
  }
  return 0;
}
