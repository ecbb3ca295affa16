// Measures the master's work on output without processes, files and a terminal. The frames of agents are
// read, decoded, and merged into lines for the console. Figures are CPU time of one core, which excludes
// other work on the machine.
//
// merge_core_bench [MEGABYTES]
//   Prints MB/s for several kinds of worker output, each measured over MEGABYTES (default 2000).
#include <ctime>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "launcher/lines/output_lines.h"
#include "rendezvous/protocol/codec.h"

namespace {

using namespace ddp;

constexpr std::uint32_t kRanks = 8;
constexpr std::size_t kSample = 16u << 20;
/// Bytes of one read from a busy link, and of one write to the console.
constexpr std::size_t kRead = 200u << 10;
constexpr std::size_t kPiece = 256u << 10;

double cpu_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/// Returns lines of `length` bytes, newline included, of all ranks in turn, in frames of `frame` bytes. A
/// frame may end within a line.
std::string frames_of(std::size_t length, std::size_t frame) {
  std::string frames;
  std::string data;
  for (std::uint32_t rank = 0; frames.size() < kSample; rank = (rank + 1) % kRanks) {
    for (std::size_t number = data.size() / length; data.size() < frame; ++number) {
      std::string line = "step " + std::to_string(number);
      line.resize(length - 1, 'x');
      data += line + "\n";
    }
    rendezvous::append_frame(rendezvous::Output{0, rank, 1, 1, std::string_view(data).substr(0, frame)},
                             frames);
    data.clear();
  }
  return frames;
}

struct Outcome {
  std::size_t in = 0;
  std::size_t out = 0;
};

/// Handles the sample once, with the steps of Connection, Master and MergedOutput.
Outcome merge(const std::string& frames, rendezvous::FrameReader& reader,
              std::vector<launcher::LineAssembler>& ranks, std::string& lines) {
  Outcome outcome;
  for (std::size_t at = 0; at < frames.size();) {
    const auto space = reader.space();
    const std::size_t count = std::min({space.size(), kRead, frames.size() - at});
    // This copy stands for the kernel's copy, a large part of the cost.
    std::memcpy(space.data(), frames.data() + at, count);
    reader.filled(count);
    at += count;
    for (;;) {
      auto frame = reader.next();
      if (!frame || !*frame) break;
      auto message = rendezvous::decode_payload(**frame);
      if (!message) std::exit(1);
      const auto& output = std::get<rendezvous::Output>(*message);
      ranks[output.rank].add(output.data, lines);
      outcome.in += output.data.size();
      if (lines.size() < kPiece) continue;
      outcome.out += lines.size();
      lines.clear();
    }
  }
  outcome.out += lines.size();
  lines.clear();
  return outcome;
}

void measure(const char* what, std::size_t length, std::size_t frame, bool labelled, std::size_t megabytes) {
  const std::string frames = frames_of(length, frame);
  rendezvous::FrameReader reader;
  std::vector<launcher::LineAssembler> ranks;
  for (std::uint32_t rank = 0; rank < kRanks; ++rank)
    ranks.emplace_back(labelled ? "[node-01:" + std::to_string(rank) + "] " : std::string());
  std::string lines;
  merge(frames, reader, ranks, lines);  // maps the memory before the measurement
  Outcome all;
  const double begin = cpu_seconds();
  while (all.in < megabytes * 1'000'000) {
    const Outcome pass = merge(frames, reader, ranks, lines);
    all.in += pass.in;
    all.out += pass.out;
  }
  const double seconds = cpu_seconds() - begin;
  std::printf("%-44s %7.0f MB/s in %7.0f MB/s out %6.1f ns a line\n", what,
              static_cast<double>(all.in) / seconds / 1e6, static_cast<double>(all.out) / seconds / 1e6,
              seconds * 1e9 * static_cast<double>(length) / static_cast<double>(all.in));
}

}  // namespace

int main(int argc, char** argv) {
  const std::size_t megabytes = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 2000;
  measure("lines of 100 bytes, labelled, 64 KiB frames", 100, 65'536, true, megabytes);
  measure("lines of 100 bytes, no label, 64 KiB frames", 100, 65'536, false, megabytes);
  measure("lines of 100 bytes, labelled, 4 KiB frames", 100, 4'096, true, megabytes);
  measure("lines of 20 bytes, labelled, 64 KiB frames", 20, 65'536, true, megabytes / 4);
  measure("lines of 1000 bytes, labelled, 64 KiB frames", 1000, 65'536, true, megabytes);
}
